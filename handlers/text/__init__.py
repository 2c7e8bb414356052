"""Here is what the tasks on text share: checked text, tokens, encoders, languages, answers as places in a text.

It may import handlers.base and what is below it, but not handlers.vision.
"""
