"""A node's name and addresses, and the file in which `make serve` leaves those it started.

make serve -> write -> .nodes/nodes.json -> read -> the gateway, the drain, make stop
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from deploy.models import ROOT
from handlers.config import SETTINGS

NODES = ROOT / ".nodes" / "nodes.json"
# In a node's folder: a mark while it is started by our commands, and what it is to restore until it has.
STARTED, RESTORE = "served", "restore.json"

# Labels of metrics, names of files and parts of paths are made of it.
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
URL = re.compile(r"http://([A-Za-z0-9.-]+|\[[0-9a-f:]+\]):(\d{1,5})")


class NoNodes(Exception):
    """The file of nodes does not say what it should; the message names it."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Node:
    """A node's addresses, http://HOST:PORT each, as the gateway reaches them; and files, if it is on this machine."""

    name: str
    inference: str
    management: str
    metrics: str
    # As TorchServe writes it: `{"management": {"key": ...}, "inference": {"key": ...}}`; None if it takes no token.
    token_file: str | None = None
    # It exists while the node restores what it served, if STARTED is beside it.
    restore_file: str | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("must be lower-case letters, digits, dots and dashes, 63 at most")
        return name

    @field_validator("inference", "management", "metrics")
    @classmethod
    def _check_url(cls, url: str) -> str:
        match = URL.fullmatch(url)
        if not match or int(match[2]) > 65535:
            raise ValueError("must be http://HOST:PORT")
        return url


def address(url: str) -> tuple[str, int]:
    """Take an address of a node apart: host, without brackets, and port."""
    match = URL.fullmatch(url)
    if match is None:
        raise ValueError("must be http://HOST:PORT")
    return match[1].strip("[]"), int(match[2])


def read(path: Path = NODES) -> list[Node]:
    """Read the nodes that `make serve` started; none where it has not.

    Raises:
        NoNodes: the file is not what `write` writes.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        return TypeAdapter(list[Node]).validate_json(text)
    except ValidationError as error:
        raise NoNodes(f"{path}: {error.error_count()} problems, the first {error.errors()[0]['msg']}") from None


def write(nodes: Sequence[Node], path: Path = NODES) -> None:
    """Write the nodes for `read`."""
    replace(path, TypeAdapter(list[Node]).dump_json(list(nodes), indent=1).decode())


def replace(path: Path, text: str) -> None:
    """Write a file that others may read, or write too, at the same time: they see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
