"""PyTriton's client, in a separate environment, against the gateway."""

import os
import subprocess
from collections.abc import Callable

import pytest

from deploy.models import ROOT
from deploy.sandbox import Sandbox
from load.bench.peer_process import PYTRITON, build_environment
from tests.waiting import until


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_program_of_pytritons_client_runs_unchanged(
    gateway: Sandbox, archive: Callable[..., str], serve: Callable[..., str], protocol: str
) -> None:
    build_environment("pytriton")
    serve(archive=archive("batch2"), name="batch2", max_batch_delay_ms=1)
    url = {"http": gateway.http, "grpc": f"grpc://{gateway.grpc}"}[protocol]
    command = [str(ROOT / ".extras" / "pytriton" / "bin" / "python"), "-m", "examples.client.pytriton", url]
    environment = {**os.environ, **PYTRITON.variables, "PYTHONPATH": str(ROOT)}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    # The gateway may not have seen yet that the model is there.
    until(lambda: run().returncode == 0)
    too_many, *chunks = run().stdout.splitlines()
    assert chunks == ["[[0], [2]]", "[[4], [6]]", "[[8]]"]
    assert "batch-size must be <= 2" in too_many
