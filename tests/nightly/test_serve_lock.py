"""The environment of serve.lock serves each task's archive as the main environment does, and has no PyTorch."""

import subprocess
from pathlib import Path

import pytest
import requests

from deploy.archives.archive import Recipe
from deploy.models import ROOT, model
from load.expect import matches
from tests.e2e.test_tasks import CASES
from tests.hosts import is_ready, start
from tests.waiting import until

PYTHON = ROOT / ".extras" / "serve" / "bin" / "python"
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


@pytest.mark.parametrize("task", CASES)
def test_archive_is_served_as_in_the_main_environment(task: str, tmp_path: Path) -> None:
    case = CASES[task]
    weights = str(case.checkpoint(tmp_path)) if case.checkpoint else None
    archive = Recipe(model(case.model), weights, engine="auto", export_path=tmp_path / "store").build().path
    hosts = [start(archive), start(archive, python=str(PYTHON))]
    try:
        for host in hosts:
            until(lambda host=host: is_ready(host))  # type: ignore[misc]
        answers = [[_ask(f"{host.url}/predictions/{case.model}", body) for body in case.good] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    for theirs, ours in zip(*answers, strict=True):
        assert theirs.status_code == 200, theirs.text
        assert matches(theirs.json(), ours.json(), 1e-6)


def _ask(url: str, body: bytes) -> requests.Response:
    return requests.post(url, body, headers={"Content-Type": ""}, timeout=60)
