"""A TorchServe or a gateway beside any other: free ports, folders that go when it does. For tests and benchmarks.

config.properties -> placed -> started (a Server, stopped and cleaned up at the end)
nodes, settings -> gateway.yaml -> gateway (its addresses; stopped and cleaned up at the end)
"""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from deploy.models import ROOT
from deploy.run.machine import PORT_STEP, LocalNode, placed
from deploy.run.node import Node
from deploy.run.server import Server

# The next nodes of one configuration listen PORT_STEP higher each: this many can, and get in nobody's way.
SIBLINGS = 4
# Ports are looked for in these 20,000.
FIRST_PORT, PORTS = 12_000, 20_000
GATEWAY_PORTS = ("http", "grpc", "metrics", "control", "probe")


def free_ports(number: int) -> list[int]:
    """Find ports of 127.0.0.1 that nothing listens on; other calls, of other processes too, find others.

    They lie below those that the kernel gives to clients (from 32768 on, in Linux), so that nobody takes one before the
    server that it is for starts, or while that server restarts.
    """
    found: list[int] = []
    with (Path(tempfile.gettempdir()) / f"torchserve-ports-{os.getuid()}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        count = int(file.read() or 0)
        while len(found) < number:
            block, place = divmod(count, PORT_STEP)
            port = FIRST_PORT + block * SIBLINGS * PORT_STEP % PORTS + place
            count += 1
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        file.truncate(0)
        file.write(str(count))
    return found


def own_settings(model_store: Path) -> dict[str, str]:
    """Return the settings of a config.properties for free ports of 127.0.0.1, and a model store."""
    *http, grpc_inference, grpc_management, worker = free_ports(6)
    addresses = zip(("inference_address", "management_address", "metrics_address"), http, strict=True)
    return {
        **{name: f"http://127.0.0.1:{port}" for name, port in addresses},
        "grpc_inference_port": str(grpc_inference),
        "grpc_management_port": str(grpc_management),
        "initial_worker_port": str(worker),
        "model_store": str(model_store),
    }


@contextmanager
def started(
    model_store: Path, config: Path = ROOT / "config.properties", extra: Sequence[str] = ()
) -> Iterator[Server]:
    """A running server.

    Args:
        model_store: its archives.
        config: what it is configured by, but for addresses and folders.
        extra: further lines of configuration.

    Raises:
        ServerError: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="torchserve-", ignore_cleanup_errors=True) as folder:
        text = "\n".join([config.read_text(encoding="utf-8"), *extra])
        server = placed("sandbox", Path(folder), text, root=ROOT, values=own_settings(model_store)).server
        try:
            server.start()
            yield server
        finally:
            server.stop()


# -- the gateway -------------------------------------------------------------------------------------------------------


class NotStarted(Exception):
    """The gateway did not come up; the message is its own."""


class Sandbox:
    """A gateway's addresses and files.

    Attributes:
        http, metrics, control, probe: URLs.
        grpc: host and port, as gRPC's clients take it.
        config: its gateway.yaml, which may be written anew.
        nodes_file: the nodes.json that it reads where `config` names no nodes.
        run: its folder of logs and process ids.
    """

    def __init__(self, folder: Path, document: Mapping[str, Any], within: Sequence[str]) -> None:
        """Configure it; `within` stands before its command."""
        self._document, self._within = document, within
        http, grpc, metrics, control, probe = (f"127.0.0.1:{document['ports'][name]}" for name in GATEWAY_PORTS)
        self.http = f"{'https' if document.get('tls') else 'http'}://{http}"
        self.grpc, self.metrics, self.control = grpc, f"http://{metrics}/metrics", f"http://{control}"
        self.probe = f"http://{probe}"
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
    """Return a TorchServe of this machine as a gateway has it."""
    return LocalNode(name, server.directory, server).node()


@contextmanager
def gateway(nodes: Sequence[Node], within: Sequence[str] = (), **settings: Any) -> Iterator[Sandbox]:
    """A running gateway.

    Args:
        nodes: what is behind it.
        within: words that stand before its command, such as those of a namespace of its own.
        settings: of gateway.yaml, as YAML has them, but for nodes and ports.

    Raises:
        NotStarted: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-", ignore_cleanup_errors=True) as folder:
        ports = dict(zip(GATEWAY_PORTS, free_ports(len(GATEWAY_PORTS)), strict=True))
        document = {"nodes": [asdict(node) for node in nodes], "ports": ports, **settings}
        sandbox = Sandbox(Path(folder), document, within)
        try:
            done = sandbox.command("start")
            if done.returncode:
                raise NotStarted(done.stderr.strip())
            yield sandbox
        finally:
            sandbox.command("stop")
