"""Benchmarks: this deployment against its peers, side by side in one run, as ratios."""
