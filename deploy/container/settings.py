"""How a node is called: the command's flags, or the environment of a container.

flag, or variable, or default -> NodeSettings -> Local: a Server below the run folder
"""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.models import ROOT
from deploy.run.machine import Local, placed
from deploy.run.properties import Settings

# Where edges reach a node, and seconds until they have seen that it drains.
ADDRESS, PORT, NOTICE_S = "127.0.0.1", 8085, 5.0
# Ten years, in minutes. The keys never leave the node: one that expires would be a node that answers nobody.
TOKEN_MIN = 10 * 365 * 24 * 60


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node of a container.

    Attributes:
        config: config.properties of its TorchServe; relative paths in it are the repository's.
        run: the folder below which all is written: configuration, logs, keys, sockets, unpacked archives.
        model_store: folder of archives; None for the configuration's own.
        address, port: where its Envoy listens.
        notice_s: seconds until every edge has seen that the node drains: the edges' `limits.unresponsive_s`, in which
            they ask four times.
    """

    config: Path
    run: Path
    model_store: Path | None = None
    address: str = ADDRESS
    port: int = PORT
    notice_s: float = NOTICE_S

    @property
    def envoy(self) -> Path:
        """The folder of Envoy's files."""
        return self.run / "envoy"

    def local(self) -> Local:
        """Its TorchServe, with a configuration of its own below the run folder.

        Raises:
            ServerError: the run folder's path is too long.
            InvalidConfig, OSError: the configuration cannot be read, or the folder not be written.
        """
        text = self.config.read_text(encoding="utf-8")
        store = self.model_store or ROOT / Settings.read(self.config).model_store
        values = {"model_store": str(store.resolve()), "token_expiration_min": str(TOKEN_MIN)}
        return placed("node", self.run, text, root=ROOT, values=values)


def add_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str] = os.environ) -> None:
    """Add the flags; a variable of the environment is a flag's default."""

    def default(name: str, otherwise: str) -> str:
        return environment.get(name) or otherwise

    store = environment.get("MODEL_STORE")
    add = parser.add_argument
    add("--config", type=Path, metavar="PATH", help="NODE_CONFIG: config.properties",
        default=Path(default("NODE_CONFIG", "/etc/torchserve/config.properties")))  # fmt: skip
    add("--model-store", type=Path, metavar="PATH", help="MODEL_STORE: of archives; default: as the configuration has",
        default=Path(store) if store else None)  # fmt: skip
    add("--run", type=Path, metavar="PATH", help="NODE_RUN: folder of all that is written",
        default=Path(default("NODE_RUN", "/run/torchserve")))  # fmt: skip
    add("--address", metavar="HOST", help="NODE_ADDRESS: where edges reach it",
        default=default("NODE_ADDRESS", ADDRESS))  # fmt: skip
    add("--port", type=_port, metavar="PORT", help="NODE_PORT", default=default("NODE_PORT", str(PORT)))
    add("--notice-s", type=_seconds, metavar="S", help="NODE_NOTICE_S: until edges have seen that the node drains",
        default=default("NODE_NOTICE_S", str(NOTICE_S)))  # fmt: skip


def of(options: argparse.Namespace) -> NodeSettings:
    """Take what was parsed."""
    return NodeSettings(
        config=options.config.resolve(),
        run=options.run.resolve(),
        model_store=options.model_store.resolve() if options.model_store else None,
        address=options.address,
        port=options.port,
        notice_s=options.notice_s,
    )


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 to 600")
    return value
