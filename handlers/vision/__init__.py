"""What the tasks on images share: decoding, and the settings of it.

It may import handlers.base and what is below it, but not handlers.text.
"""
