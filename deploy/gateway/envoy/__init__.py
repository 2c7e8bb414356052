"""Envoy's configuration, its files and its process.

    (Settings, Fleet) -> bootstrap          -> bootstrap.json, read once
                      -> listeners, filters -> listeners.json ┐
                      -> routes             -> routes-*.json  ├ read anew whenever they are renamed over
                      -> clusters           -> clusters.json  │
                      -> endpoints          -> endpoints/     ┘

Everything up to the files is a pure function to plain dictionaries, in the JSON form of Envoy's v3 API.
"""
