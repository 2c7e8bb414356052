"""The settings of a node: the command's options, or the environment of a container.

option, or variable, or default -> NodeSettings -> LocalNode: a Server below the state folder
"""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deploy.command import CommandParser
from deploy.models import ROOT
from deploy.run.machine import LocalNode, make_local_node
from deploy.run.properties import ServerSettings

CONFIG = Path("/etc/torchserve/config.properties")
STATE_DIR = Path("/run/torchserve")
# The address and the port of the node's Envoy.
ADDRESS = "127.0.0.1"
PORT = 8085
# Seconds until every edge has noticed that the node drains: the edges' `limits.unresponsive_s`, in which they check a
# node four times.
NOTICE_S = 5.0
# Minutes until a token expires: ten years. The tokens never leave the node, and an expired token would stop it.
TOKEN_MIN = 10 * 365 * 24 * 60


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node of a container. All files that it writes are below `state_dir`."""

    config: Path
    state_dir: Path
    # The folder of archives; None for the configuration's.
    model_store: Path | None = None
    address: str = ADDRESS
    port: int = PORT
    notice_s: float = NOTICE_S
    # As in gateway.yaml.
    forward_headers: tuple[str, ...] = ()

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> "NodeSettings":
        values: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(cls)}
        paths = {name: value.resolve() for name, value in values.items() if isinstance(value, Path)}
        return cls(**values | paths)

    @property
    def envoy(self) -> Path:
        return self.state_dir / "envoy"

    def local(self) -> LocalNode:
        text = self.config.read_text(encoding="utf-8")
        store = self.model_store or ROOT / ServerSettings.read(self.config).model_store
        values = {"model_store": str(store.resolve()), "token_expiration_min": str(TOKEN_MIN)}
        return make_local_node("node", self.state_dir, text, root=ROOT, values=values)


def make_parser(environment: Mapping[str, str] = os.environ) -> CommandParser:
    """Make the parser of the command; a variable of the environment is an option's default."""
    parser = CommandParser(
        prog="python -m deploy.container",
        description="Run a node: TorchServe, and Envoy in front of it, until a SIGTERM.",
        examples=["python -m deploy.container", "python -m deploy.container --port 9085 --notice-s 10"],
    )
    files = parser.add_argument_group("files")
    network = parser.add_argument_group("network")

    path: dict[str, Any] = {"type": Path, "metavar": "PATH"}

    def add(group: argparse._ArgumentGroup, option: str, variable: str, words: str, **how: Any) -> None:
        own = how.pop("default")
        default = environment.get(variable) or own
        words = f"{words}; variable: {variable}" + ("; default: %(default)s" if default else "")
        group.add_argument(option, default=default, help=words, **how)

    add(files, "--config", "NODE_CONFIG", "config.properties", default=CONFIG, **path)
    words = "folder of archives; without it the folder of the configuration"
    add(files, "--model-store", "MODEL_STORE", words, default=None, **path)
    words = "folder for all written files: configuration, logs, keys, sockets"
    add(files, "--state-dir", "NODE_STATE_DIR", words, default=STATE_DIR, **path)
    add(network, "--address", "NODE_ADDRESS", "address for edges", default=ADDRESS, metavar="ADDRESS")
    add(network, "--port", "NODE_PORT", "port for edges", default=PORT, type=int, metavar="PORT")
    words = "seconds until edges have noticed that the node drains"
    add(network, "--notice-s", "NODE_NOTICE_S", words, default=NOTICE_S, type=float, metavar="S")
    words = "the edges' forward_headers, separated by commas"
    add(network, "--forward-headers", "NODE_FORWARD_HEADERS", words, default=(), type=_split_names, metavar="NAMES")
    return parser


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
