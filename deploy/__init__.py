"""Builds archives, runs servers and the gateway, and monitors them."""

from typing import Any

Json = dict[str, Any]  # an object of JSON or YAML
