"""Measures this deployment against its peers, side by side in one run, as ratios.

It may import everything, handlers and deploy included.
"""
