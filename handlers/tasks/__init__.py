"""One file, one class, one task: the entry of an archive, where each file stands at the root under its own name.

A task may import everything of handlers but another task.
"""
