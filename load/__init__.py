"""Puts load on a server and measures what becomes of it; README.md beside this file says how.

Imports point down: errors, schedules, inputs, results, generate; windows, expect, search, run_file, served; measure,
tune, report, page; arguments, __main__.
"""
