"""A node's name, addresses and tokens, and the file in which `make serve` lists the nodes that it started.

make serve -> write_nodes -> .nodes/nodes.json -> read_nodes -> the gateway, the drain, make stop
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from deploy.places import HOME
from handlers.config import SETTINGS
from handlers.errors import InvalidConfig
from torchserve_client.files import replacing

NODES = HOME / ".nodes" / "nodes.json"
RESTARTING = "restarting"  # a file in the folder of a node: `restart` has begun to take it out
STARTED = "served"  # in a node's folder: a mark that exists from `make serve` to `make stop`
RESTORE = "restore.json"  # in a node's folder: the registrations that are not restored yet

# Metric labels, file names and path segments contain the name.
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
URL = re.compile(r"http://([A-Za-z0-9.-]+|\[[0-9a-f:]+\]):(\d{1,5})")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Node:
    """A node's addresses, http://HOST:PORT each, as the gateway reaches them; and files, if it is on this machine."""

    name: str
    inference: str
    management: str
    metrics: str
    # TorchServe's key_file.json: `{"management": {"key": ...}, "inference": {"key": ...}}`; None without tokens.
    token_file: str | None = None
    restore_file: str | None = None  # it exists while the node restores its models, if STARTED is in the same folder

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("must be lower-case letters, digits, dots and dashes, 63 at most")
        return name

    @field_validator("inference", "management", "metrics")
    @classmethod
    def _check_url(cls, url: str) -> str:
        split_address(url)
        return url


def split_address(url: str) -> tuple[str, int]:
    """Split a node's address into the host, without brackets, and the port."""
    match = URL.fullmatch(url)
    if match is None or int(match[2]) > 65535:
        raise ValueError("must be http://HOST:PORT")
    return match[1].strip("[]"), int(match[2])


def reachable_host(address: str) -> str:
    """Return the address at which this machine reaches a server that listens on an address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "[::1]"}.get(address, address)  # noqa: S104


def read_tokens(path: str | Path) -> Mapping[str, str] | None:
    """Read TorchServe's key_file.json: API -> token; None if the file is missing or not complete."""
    try:
        keys = json.loads(Path(path).read_text(encoding="utf-8"))
        return {api: str(keys[api]["key"]) for api in ("inference", "management")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_nodes(path: Path = NODES) -> list[Node]:
    try:
        return TypeAdapter(list[Node]).validate_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise InvalidConfig(f"{path}: not a nodes.json; {error.error_count()} problems, the first: {problem}") from None


def write_nodes(nodes: Sequence[Node], path: Path = NODES) -> None:
    replace_file(path, TypeAdapter(list[Node]).dump_json(list(nodes), indent=1).decode())


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically: concurrent readers see the old content or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, new.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # after a power cut, too
