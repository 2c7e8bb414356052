"""A gateway beside any other: free ports, a folder that goes when it does. What tests and benchmarks run on.

nodes, settings -> gateway.yaml -> started (its addresses; stopped and cleaned up at the end)
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from deploy.models import ROOT
from deploy.run.node import Node
from deploy.run.server import Server
from deploy.sandbox import free_ports

PORTS = ("http", "grpc", "metrics", "control")


class NotStarted(Exception):
    """The gateway did not come up; the message is its own."""


class Sandbox:
    """A gateway's addresses and files.

    Attributes:
        http, metrics, control: URLs.
        grpc: host and port, as gRPC's clients take it.
        config: its gateway.yaml, which may be written anew.
        nodes_file: the nodes.json that it reads where `config` names no nodes.
        run: its folder of logs and process ids.
    """

    def __init__(self, folder: Path, document: Mapping[str, Any], within: Sequence[str]) -> None:
        """Configure it; `within` stands before its command."""
        self._document, self._within = document, within
        http, grpc, metrics, control = (f"127.0.0.1:{document['ports'][name]}" for name in PORTS)
        self.http = f"{'https' if document.get('tls') else 'http'}://{http}"
        self.grpc, self.metrics, self.control = grpc, f"http://{metrics}/metrics", f"http://{control}"
        self.config, self.nodes_file, self.run = (folder / name for name in ("gateway.yaml", "nodes.json", "run"))
        self.configure()

    def command(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m deploy.gateway NAME` for it."""
        words = ["--config", str(self.config), "--nodes", str(self.nodes_file), "--run", str(self.run)]
        command = [*self._within, sys.executable, "-m", "deploy.gateway", name, *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    def configure(self, **settings: Any) -> None:
        """Write gateway.yaml anew with these settings in place of what it had; it is read within a second or two."""
        new = self.config.with_suffix(".new")
        # It may hold keys.
        new.touch(mode=0o600)
        new.write_text(yaml.safe_dump({**self._document, **settings}), encoding="utf-8")
        new.replace(self.config)


def node_of(server: Server, name: str = "node-1") -> Node:
    """Make a node of a TorchServe of this machine."""
    settings = server.settings
    return Node(
        name=name,
        inference=settings.inference_url,
        management=settings.management_url,
        metrics=settings.metrics_url,
        token_file=str(server.keys) if settings.has_tokens else None,
    )


@contextmanager
def started(nodes: Sequence[Node], within: Sequence[str] = (), **settings: Any) -> Iterator[Sandbox]:
    """A running gateway.

    Args:
        nodes: what is behind it.
        within: words that stand before its command, such as those of a namespace of its own.
        settings: of gateway.yaml, as YAML has them, but for nodes and ports.

    Raises:
        NotStarted: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-", ignore_cleanup_errors=True) as folder:
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        document = {"nodes": [asdict(node) for node in nodes], "ports": ports, **settings}
        sandbox = Sandbox(Path(folder), document, within)
        try:
            done = sandbox.command("start")
            if done.returncode:
                raise NotStarted(done.stderr.strip())
            yield sandbox
        finally:
            sandbox.command("stop")
