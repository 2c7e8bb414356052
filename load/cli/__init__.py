"""Runs the command line: arguments in, runs and reports out.

It may import everything of load but load.bench.
"""
