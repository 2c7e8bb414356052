"""Puts load on a server and measures what becomes of it. Direction of imports, low to high:

errors -> measure -> generate -> runs -> report -> cli, bench, soak
"""
