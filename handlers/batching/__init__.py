"""Adaptive batching: the worker forms its own batches, and decides what runs when."""
