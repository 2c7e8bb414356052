"""Kills workers under load: kill -9, again 5 s after the worker is READY.

describe (pid) -> kill -9 -> another process or state -> READY and a 200 -> 5 s -> the next

Each worker is killed twice in a row, so that one that has just come back is killed too; then it is another's turn.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import psutil

from load.soak.ledger import Kill, Ledger
from load.soak.models import Subject
from torchserve_client.management import Management, ManagementError


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says when a worker is killed, and how long it may be away."""

    # Seconds that a worker is READY before it is killed: chosen, so that its backlog is answered first.
    pause_s: float = 5.0
    # Kills of one worker before it is the next one's turn.
    in_a_row: int = 2
    # Seconds between two looks at the management API; what the recovery time does not depend on.
    poll_s: float = 0.1
    # Seconds until a worker counts as lost: three times what two busy cores take today.
    lost_s: float = 120.0


TUNING = Tuning()


class Reaper:
    """Kills the workers of one server."""

    def __init__(self, subjects: Sequence[Subject], management: Management, java_pid: int, ledger: Ledger) -> None:
        """Describe the victims.

        Args:
            subjects: the models, in the order in which their workers are killed.
            management: the server's management API.
            java_pid: the server's own process: nothing but its children is killed.
            ledger: where the kills are entered.
        """
        self._subjects = subjects
        self._java_pid = java_pid
        self._management = management
        self._ledger = ledger

    async def go_on(self, closes_s: float, least: int, most_s: float) -> None:
        """Kill until `closes_s`, and beyond it until `least` were killed, but begin no kill after `most_s`.

        Args:
            closes_s: end of the phase, of time.perf_counter.
            least: number of kills that are wanted in any case.
            most_s: when even these are given up.
        """
        for number in count():
            now_s = time.perf_counter()
            if now_s >= most_s or (now_s >= closes_s and number >= least):
                return
            if not await self._kill(self._subjects[number // TUNING.in_a_row % len(self._subjects)].name):
                return
            await asyncio.sleep(TUNING.pause_s)

    async def _kill(self, model: str) -> bool:
        """Kill a model's worker and wait until it answers again; returns whether it does."""
        started_s = time.perf_counter()
        while not self._is_worker(pid := (await self._worker(model))[0]):
            if time.perf_counter() - started_s > TUNING.lost_s:
                return False
            await asyncio.sleep(TUNING.poll_s)
        kill = self._ledger.killed(model, pid, time.perf_counter())
        os.kill(pid, signal.SIGKILL)
        while time.perf_counter() - kill.killed_s < TUNING.lost_s:
            await asyncio.sleep(TUNING.poll_s)
            await self._observe(kill)
            if kill.ready_s is not None and kill.answered_s is not None:
                return True
        return False

    def _is_worker(self, pid: int) -> bool:
        """Whether this is a process of that server. While a worker starts TorchServe says -1, which is everybody."""
        try:
            return pid > 1 and psutil.Process(pid).ppid() == self._java_pid
        except psutil.Error:
            return False

    async def _observe(self, kill: Kill) -> None:
        pid, status = await self._worker(kill.model)
        now_s = time.perf_counter()
        if kill.noticed_s is None and (pid, status) != (kill.pid, "READY"):
            kill.noticed_s = now_s
        if kill.ready_s is None and pid != kill.pid and status == "READY":
            kill.ready_s = now_s

    async def _worker(self, model: str) -> tuple[int, str]:
        """Process and state of a model's one worker; no process and no state while the server does not say."""
        try:
            described = await asyncio.to_thread(self._management.describe, model)
        except ManagementError:
            return -1, ""
        for worker in described["workers"]:
            return int(worker["pid"]), str(worker["status"])
        return -1, ""
