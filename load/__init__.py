"""Sends load to a server and measures the responses; README.md beside this file describes it.

Imports point down: errors, schedules; inputs, results; generate; expect, search, served, run_file; measure,
report; page; arguments, bench; __main__.
"""
