"""The optional parts that the core of deploy/ calls: to remove one, remove its folder and its line."""

from importlib import import_module
from typing import Any

ROOMS = {
    "gateway": "deploy.gateway.drain",  # torchserve-batching drain
    "migrate": "deploy.archives.migrate.entry",  # archive --from
    "precision": "deploy.archives.precision.request",  # each build compares the archive with its model
    "int8": "deploy.archives.precision.int8",  # archive --precision int8
}


def open_room(name: str) -> Any:
    """Import the module of a part; None if the table lacks it."""
    return import_module(ROOMS[name]) if name in ROOMS else None
