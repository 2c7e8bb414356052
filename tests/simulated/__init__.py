"""Adaptive workers in simulated time, with the real scheduler and rhythm.

clients -> requests -> scheduler, exchanges with a frontend -> outcomes
"""
