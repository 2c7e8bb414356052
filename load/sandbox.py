"""A TorchServe or a gateway with free ports and temporary folders. For tests and benchmarks.

config.properties -> make_local_node -> run_server (a Server; stopped and removed at the end)
nodes, settings -> gateway.yaml -> run_gateway (a Sandbox; stopped and removed at the end)
"""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import yaml

from deploy.models import ROOT
from deploy.nodes.run.machine import PORT_STEP, LocalNode, make_local_node
from deploy.nodes.run.node import Node
from deploy.nodes.run.server import Server
from torchserve_client.payloads import Json

SIBLINGS = 4  # nodes of one configuration, each with ports higher by PORT_STEP, whose ports are reserved together
FIRST_PORT = 12_000  # the lowest port that is tried
PORTS = 20_000  # the number of ports that are tried
GATEWAY_PORTS = ("http", "grpc", "metrics", "control", "probe")


def free_ports(number: int) -> list[int]:
    """Find ports that no process shares, below those that Linux gives to clients while a server restarts."""
    found: list[int] = []
    # Of all programs of this user: two runs may have other temporary folders, and the same ports.
    with Path(f"/tmp/torchserve-ports-{os.getuid()}").open("a+") as file:  # noqa: S108
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


def make_settings(model_store: Path) -> dict[str, str]:
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
def run_server(
    model_store: Path, config: Path = ROOT / "config.properties", extra: Sequence[str] = ()
) -> Iterator[Server]:
    """Run a server with the archives of a model store, a configuration, and extra lines of configuration."""
    with tempfile.TemporaryDirectory(prefix="torchserve-", ignore_cleanup_errors=True) as folder:
        text = "\n".join([config.read_text(encoding="utf-8"), *extra])
        server = make_local_node("sandbox", Path(folder), text, root=ROOT, values=make_settings(model_store)).server
        try:
            server.start()
            yield server
        finally:
            server.stop()


class NotStarted(Exception):
    """The gateway did not start; the message is its output."""


class Sandbox:
    """A gateway's addresses (URLs; for gRPC host and port) and files; tests may change gateway.yaml and nodes.json."""

    def __init__(self, folder: Path, document: Json, prefix: Sequence[str]) -> None:
        """Write gateway.yaml; `prefix` is the start of the gateway's command line."""
        self._document, self._prefix = document, prefix
        http, grpc, metrics, control, probe = (f"127.0.0.1:{document['ports'][name]}" for name in GATEWAY_PORTS)
        self.http = f"{'https' if document.get('tls') else 'http'}://{http}"
        self.grpc, self.metrics, self.control = grpc, f"http://{metrics}/metrics", f"http://{control}"
        self.probe = f"http://{probe}"
        self.config, self.nodes_file, self.state_dir = map(folder.joinpath, ("gateway.yaml", "nodes.json", "state"))
        self.configure()

    def command(self, name: str) -> subprocess.CompletedProcess[str]:
        words = ["--config", str(self.config), "--nodes-file", str(self.nodes_file), "--state-dir", str(self.state_dir)]
        command = [*self._prefix, sys.executable, "-m", "deploy.gateway", name, *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    def configure(self, **settings: object) -> None:
        """Replace settings in gateway.yaml; the gateway reads it within a second or two."""
        new = self.config.with_suffix(".new")
        # It may contain keys.
        new.touch(mode=0o600)
        new.write_text(yaml.safe_dump({**self._document, **settings}), encoding="utf-8")
        new.replace(self.config)


def make_node(server: Server, name: str = "node-1") -> Node:
    return LocalNode(name, server.directory, server).node()


@contextmanager
def run_gateway(nodes: Sequence[Node], prefix: Sequence[str] = (), **settings: object) -> Iterator[Sandbox]:
    """Run a gateway in front of nodes, behind `prefix` such as one to enter a namespace, or raise NotStarted."""
    with tempfile.TemporaryDirectory(prefix="gateway-", ignore_cleanup_errors=True) as folder:
        ports = dict(zip(GATEWAY_PORTS, free_ports(len(GATEWAY_PORTS)), strict=True))
        document = {"nodes": [asdict(node) for node in nodes], "ports": ports, **settings}
        sandbox = Sandbox(Path(folder), document, prefix)
        try:
            done = sandbox.command("start")
            if done.returncode:
                raise NotStarted(done.stderr.strip())
            yield sandbox
        finally:
            sandbox.command("stop")
