"""Each file contains one class, which is one task and the entry point of an archive, at whose root it lies.

A task may import everything of handlers except another task.
"""
