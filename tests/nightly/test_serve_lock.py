"""The environment of serve.lock serves archives as the main environment does, and has no PyTorch."""

import json
import subprocess
from pathlib import Path

import pytest
import requests

from deploy.archives.archive import Recipe
from deploy.models import ROOT, model
from load.expect import matches
from tests.hosts import is_ready, start
from tests.waiting import until

PYTHON = ROOT / ".extras" / "serve" / "bin" / "python"
TEXT = json.dumps({"text": "Anna Berg kept the inn by the harbour."}).encode()
# Example -> a request's body and its type.
REQUESTS = {
    "mobilenet-v2": ((ROOT / "examples" / "mobilenet-v2" / "espresso.jpg").read_bytes(), "image/jpeg"),
    "sentence-embedding": (TEXT, "application/json"),
    "language-id": (TEXT, "application/json"),
}
# Mebibytes of the environment.
MOST_MIB = 900


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", "serve"], cwd=ROOT, check=True, timeout=600)


def test_environment_is_small_and_has_no_torch() -> None:
    packages = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False)
    assert packages.returncode != 0
    files = [path for path in PYTHON.parents[1].rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < MOST_MIB << 20


@pytest.mark.parametrize("name", REQUESTS)
def test_archive_is_served_as_in_the_main_environment(name: str, tmp_path: Path) -> None:
    archive = Recipe(model(name), engine="auto", export_path=tmp_path).build().path
    body, kind = REQUESTS[name]
    hosts = [start(archive), start(archive, python=str(PYTHON))]
    try:
        for host in hosts:
            until(lambda host=host: is_ready(host))  # type: ignore[misc]
        answers = [
            requests.post(f"{host.url}/predictions/{name}", body, headers={"Content-Type": kind}, timeout=60)
            for host in hosts
        ]
    finally:
        for host in hosts:
            host.kill()
    assert [each.status_code for each in answers] == [200, 200]
    assert matches(answers[0].json(), answers[1].json(), 1e-6)
