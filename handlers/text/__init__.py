"""Text, tokens, encoders, languages and answers as places in a text: shared by the tasks on texts.

It may import handlers.base and everything below it, but not handlers.vision.
"""
