"""Records requests and their answers, and sums them up.

It may import load.errors.
"""
