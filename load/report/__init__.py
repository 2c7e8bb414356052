"""Shows stored runs as a table, as CSV and as a page.

It may import load.runs and what is below it.
"""
