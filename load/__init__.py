"""Load on a server, and what became of it. Direction of imports, low to high:

errors -> measure -> generate -> runs -> report -> cli, bench
"""
