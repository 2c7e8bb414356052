"""Which waiting items run next, when, and who is refused. Pure: every method is told the time.

It may import handlers.pipeline and what is below it.
"""
