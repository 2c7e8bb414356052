"""A process of `python -m deploy.serve` with a function that takes 0.2 s."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
import yaml

from deploy.archives.archive import Recipe
from deploy.models import ROOT, ModelEntry
from tests.waiting import until

INFER = """
import time

def infer(x):
    time.sleep(0.2)
    return {"y": x * 2}
"""


class Served(NamedTuple):
    """A process and the URL that it prints."""

    process: "subprocess.Popen[str]"
    url: str
    grpc: str


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def command(*words: object) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "deploy.serve", *map(str, words)]


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colours")
    (folder / "infer.py").write_text(INFER)
    tensors = {kind: {name: {"datatype": "INT64", "shape": [-1]}} for kind, name in (("inputs", "x"), ("outputs", "y"))}
    handler = {"max_batch_items": 1, **tensors}
    (folder / "model-config.yaml").write_text(yaml.safe_dump({"handler": handler}))
    (folder / "sample.json").write_text('{"x": 1}')
    entry = ModelEntry("colours", "tensors", "1.0", folder, {"path": "infer.py"})
    return Recipe(entry, engine="auto", export_path=tmp_path_factory.mktemp("store")).build().path


@pytest.fixture
def serve(archive: Path, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[subprocess.Popen[str]] = []

    def start(**limits: float) -> Served:
        port, grpc_port, config = free_port(), free_port(), tmp_path / "limits.yaml"
        config.write_text(yaml.safe_dump(limits))
        words = command(archive, "--port", port, "--grpc-port", grpc_port, "--config", config)
        started.append(subprocess.Popen(words, cwd=ROOT, env={**os.environ}, stdout=subprocess.DEVNULL, text=True))
        url = f"http://127.0.0.1:{port}"
        until(lambda: _is_ready(url))
        return Served(started[-1], url, f"127.0.0.1:{grpc_port}")

    yield start
    for process in started:
        process.kill()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/ping", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False
