"""How a node is called: the command's flags, or the environment of a container.

flag, or variable, or default -> NodeSettings -> LocalNode: a Server below the run folder
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.models import ROOT
from deploy.run.machine import LocalNode, placed
from deploy.run.properties import Settings

# Where edges reach a node, and seconds until they have seen that it drains.
ADDRESS, PORT, NOTICE_S = "127.0.0.1", 8085, 5.0
# Ten years, in minutes. The keys never leave the node: one that expires would be a node that answers no one.
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
        forward_headers: as gateway.yaml has them.
    """

    config: Path
    run: Path
    model_store: Path | None = None
    address: str = ADDRESS
    port: int = PORT
    notice_s: float = NOTICE_S
    forward_headers: tuple[str, ...] = ()

    @classmethod
    def parse(cls, arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> "NodeSettings":
        """Parse the command line; a variable of the environment is a flag's default."""
        parser = argparse.ArgumentParser(
            prog="python -m deploy.container node",
            description="TorchServe, and Envoy in front of it, until a SIGTERM.",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )

        def add(name: str, variable: str, kind: type, default: object, words: str) -> None:
            value = environment.get(variable) or default
            parser.add_argument(f"--{name}", type=kind, default=value, help=f"{variable}: {words}")

        add("config", "NODE_CONFIG", Path, "/etc/torchserve/config.properties", "config.properties")
        add("model-store", "MODEL_STORE", Path, None, "of archives, in place of the configuration's own")
        add("run", "NODE_RUN", Path, "/run/torchserve", "folder of all that is written")
        add("address", "NODE_ADDRESS", str, ADDRESS, "where edges reach it")
        add("port", "NODE_PORT", int, PORT, "its port there")
        add("notice-s", "NODE_NOTICE_S", float, NOTICE_S, "seconds until edges have seen that the node drains")
        add("forward-headers", "NODE_FORWARD_HEADERS", str, "", "the edges' forward_headers, separated by commas")
        options = vars(parser.parse_args(arguments))
        paths = {name: value.resolve() for name, value in options.items() if isinstance(value, Path)}
        names = tuple(filter(None, options["forward_headers"].split(",")))
        return cls(**{**options, **paths, "forward_headers": names})

    @property
    def envoy(self) -> Path:
        """The folder of Envoy's files."""
        return self.run / "envoy"

    def local(self) -> LocalNode:
        """Return its TorchServe, with a configuration of its own below the run folder.

        Raises:
            ServerError: the run folder's path is too long.
            InvalidConfig, OSError: the configuration cannot be read, or the folder not be written.
        """
        text = self.config.read_text(encoding="utf-8")
        store = self.model_store or ROOT / Settings.read(self.config).model_store
        values = {"model_store": str(store.resolve()), "token_expiration_min": str(TOKEN_MIN)}
        return placed("node", self.run, text, root=ROOT, values=values)
