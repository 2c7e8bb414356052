"""The version of the client, which is that of the project (pyproject.toml)."""

VERSION = "0.4.0"
