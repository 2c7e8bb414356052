"""Decoding of images, networks behind pixels, and settings: shared by the tasks on images.

It may import handlers.base and everything below it, but not handlers.text.
"""
