"""The soak on a real TorchServe: a minute of it, in both modes, as `make soak MINUTES=1` runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.models import ROOT
from load.soak.models import subjects
from load.soak.run import Plan

PLAN = Plan("both", 1, 1)


@pytest.mark.timeout(PLAN.hard_end_s + 60)
def test_minute_of_mixed_load_with_killed_workers_loses_and_crosses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = [sys.executable, "-m", "load.soak", "--minutes", "1", "--mode", "both", "--seed", "1", "--out", str(out)]
    # In a process of its own: its hard end is an alarm, and so is pytest's.
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    soak = json.loads(out.read_text())
    assert soak["findings"] == []
    total = soak["traffic"][-1]
    assert (total["unanswered"], total["crossed"], total["wrong"], total["unexpected"]) == (0, 0, 0, {})
    assert sum(kill["recovery_s"] is not None for kill in soak["kills"]) >= PLAN.least_kills
    names = {subject.name for subject in subjects("both")}
    assert {each["model"] for each in soak["traffic"] if each["verdicts"].get("right")} == {*names, ""}
    assert {each["name"] for each in soak["processes"]} == {*names, "java"}
    assert soak["misbehaving"].keys() >= {"interrupted", "half-sent", "stalled", "slow reader"}
