"""Processes of `python -m deploy.hosts.serve`, on free ports."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import requests
import yaml

from deploy.models import ROOT
from deploy.nodes.run.node import Node
from load.sandbox import free_ports
from tests.waiting import PATIENCE_S, until

# Their measurements stay out of the user's home.
CACHE = tempfile.TemporaryDirectory()


class Host(NamedTuple):
    """A process, its HTTP URL, and HOST:PORT of its gRPC."""

    process: "subprocess.Popen[str]"
    url: str
    grpc: str

    def node(self, name: str) -> Node:
        return Node(name=name, inference=self.url, management=self.url, metrics=self.url)

    def as_server(self) -> Any:
        """Return it for helpers that only ask a Server for its address."""
        return SimpleNamespace(settings=SimpleNamespace(inference_url=self.url))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.process.send_signal(number)
        self.process.wait(PATIENCE_S)


def command(*words: object, python: str = sys.executable) -> list[str]:
    return [python, "-W", "ignore", "-m", "deploy.hosts.serve", *map(str, words)]


def start(archive: Path | None, *words: object, log: Path | None = None, python: str = sys.executable) -> Host:
    """Start a process, which need not be ready, in a Python's environment; `log` receives all that it writes."""
    port, grpc_port = free_ports(2)
    line = command(*([archive] if archive else []), "--port", port, "--grpc-port", grpc_port, *words, python=python)
    with (log or Path(os.devnull)).open("w") as out:
        errors = out if log else None
        process = subprocess.Popen(
            line, cwd=ROOT, env={"CACHE_DIR": CACHE.name, **os.environ}, stdout=out, stderr=errors, text=True
        )
    return Host(process, f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}")


@contextmanager
def run_hosts(*archives: Path, log: Path | None = None) -> Iterator[list[Host]]:
    """Serve archives, one in each process, until the block ends."""
    hosts = [start(archive, log=log) for archive in archives]
    try:
        for host in hosts:
            until(lambda host=host: is_ready(host))  # type: ignore[misc]
        yield hosts
    finally:
        for host in hosts:
            host.end()


@contextmanager
def serving(
    archive: Path | None, *words: object, folder: Path, log: Path | None = None, **limits: object
) -> Iterator[Host]:
    """Serve in a process with these limits, which it reads from a file in the folder, until the block ends."""
    (config := folder / "limits.yaml").write_text(yaml.safe_dump(limits))
    host = start(archive, "--config", config, *words, log=log)
    try:
        until(lambda: is_ready(host))
        yield host
    finally:
        host.kill()


def is_ready(host: Host) -> bool:
    assert host.process.poll() is None, "the process has ended"
    try:
        return requests.get(f"{host.url}/ping", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False
