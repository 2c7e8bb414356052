"""Sends load to a server and measures the responses; README.md beside this file describes it.

Imports point down: schedules; inputs, results; generate; expect, served, run_file; measure,
report; page; arguments, bench; __main__.
"""


class LoadError(Exception):
    """A measurement is not possible, or a result cannot be stored; the message is one line with the remedy."""
