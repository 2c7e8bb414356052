"""The environment of serve.lock serves each task's archive as the main environment does, and has no PyTorch."""

import subprocess
from pathlib import Path

import pytest

from deploy.models import ROOT
from load.bench.peer_process import build_environment
from load.expect import matches
from tests.e2e.conftest import ADAPTIVE, Make, send, vary
from tests.e2e.test_tasks import CASES, built, check, fp32
from tests.hosts import is_ready, start
from tests.waiting import until

PYTHON = str(ROOT / ".extras" / "serve" / "bin" / "python")
# Mebibytes of the environment.
MOST_MIB = 900


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    build_environment("serve")


def test_environment_is_small_and_has_no_torch() -> None:
    packages = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False)
    assert packages.returncode != 0
    files = [path for path in Path(PYTHON).parents[1].rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < MOST_MIB << 20


@pytest.mark.parametrize("task", CASES)
def test_each_task_answers_any_batch_without_torch_and_as_in_the_main_environment(
    archive: Make, model_store: Path, tmp_path: Path, task: str
) -> None:
    name, log = built(archive, task, tmp_path), tmp_path / "log"
    # Of two hosts that start at once, `precision: auto` may find bf16 fast enough in one alone.
    plain = vary(model_store, f"{task}-plain", name, fp32(task), {})
    exact = vary(model_store, f"{task}-one-process", name, fp32(task), ADAPTIVE)
    hosts = [start(plain), start(plain, python=PYTHON), start(exact, python=PYTHON, log=log)]
    try:
        for host in hosts:
            until(lambda host=host: is_ready(host))  # type: ignore[misc]
        check(hosts[2].as_server(), task, {"adaptive": exact.name})
        for body in CASES[task].good:
            wanted, found = (send(host.as_server(), plain.name, body) for host in hosts[:2])
            assert wanted.status == 200 and matches(wanted.body, found.body, 1e-6)
    finally:
        for host in hosts:
            host.kill()
    assert "canary" not in log.read_text()
