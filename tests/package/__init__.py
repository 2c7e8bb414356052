"""The distribution: its command, its project, its wheel."""
