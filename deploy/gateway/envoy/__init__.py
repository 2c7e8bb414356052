"""Envoy's configuration, its files and its process.

    (Settings, Fleet) -> bootstrap -> bootstrap.json, read once
                      -> listeners -> listeners.json ┐
                      -> routes    -> routes-*.json  ├ read again whenever a rename replaces them
                      -> clusters  -> clusters.json  │
                      -> endpoints -> endpoints.json ─> discovery: one stream for all clusters

The fixed parts are YAML files of Envoy's v3 API beside the module of the same name; the module fills in the settings.
Everything before the files is a pure function that returns plain dictionaries.
"""
