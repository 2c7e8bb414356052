"""Here is what the tasks on images share: decoding, and its settings.

It may import handlers.base and what is below it, but not handlers.text.
"""
