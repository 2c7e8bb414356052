"""Hosts of archives besides TorchServe: one process, Ray Serve, bulk scoring, and their common routes."""
