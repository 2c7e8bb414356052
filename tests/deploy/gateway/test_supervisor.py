"""The control process under its supervisor."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from deploy.gateway import supervisor
from tests.waiting import until


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("sys.exit(3)", pytest.raises(supervisor.GatewayFailed, match="the control process did not start")),
        # A kernel without memory may have killed it.
        ("os.kill(os.getpid(), 9)", nullcontext()),
    ],
)
def test_control_process_that_is_killed_before_its_first_heartbeat_is_started_again(
    end: str, outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_words: object, log: Path, stdin: int) -> "subprocess.Popen[bytes]":
        program = f"import os, sys; print('started', flush=True); {end}"
        with log.open("ab") as output:
            return subprocess.Popen([sys.executable, "-c", program], stdin=stdin, stdout=output)

    monkeypatch.setattr(supervisor, "start_module", start)
    monkeypatch.setattr(supervisor, "RETRY_S", 0)
    control = supervisor.Control(tmp_path / "gateway.yaml", tmp_path / "nodes.json", tmp_path)

    def is_started_again() -> bool:
        control.keep()
        log = tmp_path / "control.log"
        return log.exists() and log.read_text().count("started") > 1

    with outcome:
        until(is_started_again)
    control.stop()
