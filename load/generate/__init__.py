"""Makes requests: closed and open loops, their schedules, what is sent and where to.

It may import load.measure and what is below it.
"""
