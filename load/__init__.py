"""Puts load on a server and measures what becomes of it; README.md beside this file says how.

Imports point down: errors, schedules; inputs, results; generate; windows, expect, search, served, run_file; measure,
report; page, tune; arguments, bench; __main__.
"""
