"""Operators' drills, which end nothing: a clock that is set, disks that are full or read-only, kills at any start.

In test_failure_modes' fleet under its load; there Java and the worker are stopped, for 30 s. Needs root.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product

import psutil
import pytest

from deploy.gateway.supervisor import HANG_S
from deploy.models import ROOT
from load.results import NO_ANSWER
from tests.e2e.machine import READY_S
from tests.nightly.test_failure_modes import Fleet, fleet, observed
from tests.waiting import until

__all__ = ["fleet"]
MOMENTS_S = (0.4, 1.0, 1.8)
# Seconds in which supervisors look a few times.
LOOKS_S = 3.0


def kill(fleet: Fleet, name: str) -> None:
    before = fleet.process(name)

    def is_new() -> bool:
        with suppress(psutil.Error, StopIteration, ValueError):
            return fleet.process(name).pid != before.pid
        return False

    before.kill()
    until(is_new, READY_S)


def clock_is_set(fleet: Fleet) -> None:
    # Its effect: a process seems to have begun long after its file was written, or long before.
    for time_s in (0, 1 << 32):
        for node in fleet.nodes:
            os.utime(node.server.temporary / ".model_server.pid", (time_s, time_s))
        time.sleep(LOOKS_S)


def folder_is_read_only(fleet: Fleet) -> None:
    folder = fleet.gateway.state_dir.parent
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    time.sleep(HANG_S + LOOKS_S)
    subprocess.run(["umount", "-l", folder], check=True)


def killed_while_the_disk_is_full(fleet: Fleet) -> None:
    # Logs grow meanwhile: it writes until nothing is free.
    filler = fleet.gateway.state_dir.with_name("filler")
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], check=False, capture_output=True)
    assert shutil.disk_usage(fleet.gateway.state_dir).free == 0
    for name in ("control", "envoy"):
        kill(fleet, name)
    fleet.wait_ready()
    filler.unlink()


def killed_as_they_start(fleet: Fleet) -> None:
    for name, moment_s in product(("worker", "java"), MOMENTS_S):
        kill(fleet, name)
        time.sleep(moment_s)
        kill(fleet, name)
        fleet.wait_ready()


@pytest.mark.parametrize(
    ("drill", "statuses", "replaced"),
    [
        (clock_is_set, {200}, set()),
        (folder_is_read_only, {200}, set()),
        (killed_while_the_disk_is_full, {200, NO_ANSWER}, {"envoy", "control"}),
        (killed_as_they_start, {200, 500, 503, 507}, {"java"}),
    ],
)
def test_drill_ends_nothing(
    fleet: Fleet, drill: Callable[[Fleet], None], statuses: set[int], replaced: set[str]
) -> None:
    before = {name: fleet.process(name).pid for name in ("envoy", "control", "java")}
    assert set(observed(fleet, drill.__name__, lambda: drill(fleet)).statuses) <= statuses
    assert {name for name, pid in before.items() if fleet.process(name).pid != pid} == replaced


@pytest.mark.parametrize("moment_s", MOMENTS_S)
@pytest.mark.parametrize("name", ["supervisor", "control", "envoy", "nothing"])
def test_gateway_serves_though_a_process_is_killed_as_it_starts(fleet: Fleet, name: str, moment_s: float) -> None:
    gateway, run = fleet.gateway, str(fleet.gateway.state_dir)
    gateway.command("stop")
    assert [each for each in psutil.process_iter(["cmdline"]) if run in str(each.info)] == []
    words = ["--config", str(gateway.config), "--nodes-file", str(gateway.nodes_file), "--state-dir", run]
    begun = subprocess.Popen([sys.executable, "-m", "deploy.gateway", "run", *words], cwd=ROOT)
    time.sleep(moment_s)
    # There may be none yet.
    with suppress(StopIteration, OSError, ValueError, psutil.Error):
        (psutil.Process(begun.pid) if name == "supervisor" else fleet.process(name)).kill()
    if name in ("supervisor", "nothing"):
        # Another one starts in the same folder: one of both is the gateway.
        assert gateway.command("start").returncode == 0
    fleet.wait_ready()
    supervisor = int((gateway.state_dir / "gateway.pid").read_text())
    assert begun.poll() in ((None,) if begun.pid == supervisor else (-9, 1))
    begun.terminate()
    begun.wait(READY_S)
