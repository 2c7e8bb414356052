"""Envoy's configuration, its files and its process.

(Settings, Fleet) -> bootstrap -> bootstrap.json, read once
                  -> listeners -> listeners.json ┐
                  -> routes    -> routes-*.json  ├ read again whenever a rename replaces them
                  -> clusters  -> clusters.json  │
                  -> endpoints -> endpoints.json ─> discovery: one stream for all clusters
"""
