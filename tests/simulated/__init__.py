"""Adaptive workers in simulated time, with the real scheduler and timing.

clients -> requests -> scheduler, exchanges with a frontend -> outcomes
"""
