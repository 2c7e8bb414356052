"""Builds archives, runs servers and the gateway, and monitors them."""
