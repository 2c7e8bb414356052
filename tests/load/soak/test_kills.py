"""Kills: which process is killed, and when the next one is; the workers are processes that can really be killed."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from load.soak import kills
from load.soak.kills import Reaper
from load.soak.ledger import Ledger
from load.soak.models import Subject
from torchserve_client.errors import ManagementError

SUBJECTS = [Subject(name, "language_id", "classic", 1) for name in ("one", "two")]
# A server: starts a worker for each line, and prints its pid.
SERVER = """
import subprocess, sys
workers = []
for line in sys.stdin:
    workers.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"]))
    print(workers[-1].pid, flush=True)
for worker in workers:
    worker.kill()
    worker.wait()
"""


class Workers:
    """What a management API says of the workers of one process, and who brings back those that were killed."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self.answers: list[dict[str, Any] | Exception] = []
        self._server = server
        self._dead: set[int] = set()
        self._pids = {subject.name: self._started() for subject in SUBJECTS}

    def _started(self) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write("\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def describe(self, model: str) -> dict[str, Any]:
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        pid = self._pids[model]
        # The server notices a little later.
        if psutil.Process(pid).status() == "zombie" and pid not in self._dead:
            self._dead.add(pid)
        elif pid in self._dead:
            self._pids[model] = self._started()
            return {"workers": [{"pid": -1, "status": "WORKER_STOPPED"}]}
        return {"workers": [{"pid": self._pids[model], "status": "READY"}]}


@contextmanager
def workers() -> Iterator[tuple[Workers, int]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield Workers(server), server.pid


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "TUNING", kills.Tuning(pause_s=0.05, poll_s=0.01, lost_s=1.0))


def reaped(management: Workers, java_pid: int, *, least: int, answering: bool = True) -> Ledger:
    """Kill until `least` were, with a server that is answering, or not, once it was noticed that a worker is gone."""
    ledger = Ledger()

    async def go_on() -> None:
        reaper = Reaper(SUBJECTS, management, java_pid, ledger)  # type: ignore[arg-type]
        now_s = time.perf_counter()
        reaping = asyncio.create_task(reaper.go_on(now_s, least, now_s + 60))
        while not reaping.done():
            await asyncio.sleep(0.005)
            for kill in ledger.kills:
                if answering and kill.noticed_s and not kill.answered_s:
                    kill.answered_s = time.perf_counter()
        await reaping

    asyncio.run(go_on())
    return ledger


def test_each_worker_is_killed_twice_in_a_row_before_it_is_the_next_ones_turn() -> None:
    with workers() as (management, java_pid):
        ledger = reaped(management, java_pid, least=5)
    assert [kill.model for kill in ledger.kills] == ["one", "one", "two", "two", "one"]
    assert len({kill.pid for kill in ledger.kills}) == 5
    assert all(kill.recovery_s is not None and kill.ready_s is not None for kill in ledger.kills)
    ready_s = [kill.ready_s for kill in ledger.kills if kill.ready_s]
    noticed_s = [kill.noticed_s for kill in ledger.kills if kill.noticed_s]
    assert all(noticed <= ready for noticed, ready in zip(noticed_s, ready_s, strict=True))
    killed_s = [kill.killed_s for kill in ledger.kills]
    assert all(later - earlier >= 0.05 for earlier, later in zip(ready_s, killed_s[1:], strict=False))


@pytest.mark.parametrize("pid", [-1, 0, 1, 2**22 + 1, "its parent's", "somebody else's"])
def test_nothing_but_a_worker_of_that_server_is_killed(pid: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    kill = os.kill

    def careful(pid: int, number: int) -> None:
        """Where the guard is gone, the test fails, and nobody else is killed."""
        asked.append(pid)
        if pid > 1 and pid not in (java_pid, other.pid):
            kill(pid, number)

    monkeypatch.setattr(os, "kill", careful)
    with workers() as (management, java_pid), subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as other:
        found = {"its parent's": java_pid, "somebody else's": other.pid}.get(str(pid), pid)
        wrong = {"workers": [{"pid": found, "status": "READY"}]}
        management.answers = [wrong, {"workers": []}, ManagementError("busy", 503)]
        ledger = reaped(management, java_pid, least=1)
        assert other.poll() is None
    assert asked == [each.pid for each in ledger.kills]
    assert len(asked) == 1
    assert found not in asked


def test_worker_that_does_not_answer_again_ends_the_kills() -> None:
    with workers() as (management, java_pid):
        ledger = reaped(management, java_pid, least=5, answering=False)
    (kill,) = ledger.kills
    assert kill.recovery_s is None
