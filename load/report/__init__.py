"""Stored runs as a table, as CSV and as a page."""
