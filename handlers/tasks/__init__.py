"""Each file holds one class, which is one task and the entry of an archive: there it stands at the root, by its name.

A task may import everything of handlers but another task.
"""
