"""Envoy's configuration, its files and its process.

    (Settings, Fleet) -> bootstrap -> bootstrap.json, read once
                      -> listeners -> listeners.json ┐
                      -> routes    -> routes-*.json  ├ read anew whenever they are renamed over
                      -> clusters  -> clusters.json  │
                      -> endpoints -> endpoints/     ┘

What is the same whatever the settings is YAML beside the module of its name, in the form of Envoy's v3 API; the module
fills in the rest. Everything up to the files is a pure function to plain dictionaries.
"""
