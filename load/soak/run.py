"""One soak, from the first archive to the last answer.

archives -> server -> canaries, each asked alone -> capacity -> steady -> kills -> drained -> Outcome

capacity  a closed loop with the very mix
steady    70 % of it, with misbehaving clients beside; memory is watched here
kills     the same, and workers are killed
drained   nothing more is sent; what is in flight is waited for, and whatever is left is unanswered
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox import started
from deploy.server import Server
from load.errors import LoadError
from load.runs.served import Served
from load.soak import models
from load.soak.canaries import Canaries, asked_alone, chosen
from load.soak.candidates import candidates
from load.soak.kills import Reaper
from load.soak.ledger import CAPACITY, KILLS, STEADY, Ledger
from load.soak.misbehaviour import Misbehaviour
from load.soak.models import Subject
from load.soak.progress import aside, progress
from load.soak.report import Outcome, Setting, held
from load.soak.resources import JAVA, Sample, look
from load.soak.traffic import Traffic
from torchserve_client.management import ManagementError


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how a soak is cut into phases."""

    # Share of the capacity that is asked for: what an operator plans with, so that a killed worker's backlog drains.
    load: float = 0.7
    # Clients of the closed loop for each model, so that batches are formed.
    clients: int = 4
    # Seconds of the closed loop before it is measured, and most that it is measured.
    warm_up_s: float = 3.0
    capacity_s: float = 10.0
    # Share of the minutes without kills.
    steady: float = 0.4
    # Kills that are wanted for each minute: a worker takes some 20 s to come back today; never fewer than 2, and 10 are
    # enough.
    kills_per_minute: float = 1.0
    least_kills: int = 2
    enough_kills: int = 10
    # Seconds that the kills may go on beyond their phase, for each that is wanted.
    overtime_s: float = 45.0
    # Seconds until a request counts as unanswered: a worker's absence, and the backlog behind it.
    timeout_s: float = 120.0
    # Seconds that the last answers are waited for, and that the server is then given to close what was left open.
    drain_s: float = 60.0
    settle_s: float = 10.0
    # Seconds for archives, server and workers to come up, and for the server to stop.
    start_s: float = 420.0
    stop_s: float = 60.0
    # Seconds between two looks at the processes.
    look_s: float = 1.0


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wanted.

    Attributes:
        mode: one of models.MODES.
        minutes: length of both phases together.
        seed: decides on inputs and arrivals.
    """

    mode: str
    minutes: float
    seed: int

    @property
    def least_kills(self) -> int:
        """Number of kills that are wanted in any case."""
        wanted = round(TUNING.kills_per_minute * self.minutes)
        return min(TUNING.enough_kills, max(TUNING.least_kills, wanted))

    @property
    def hard_end_s(self) -> float:
        """Seconds after which the program ends, whatever happens."""
        phases = 60 * self.minutes + TUNING.warm_up_s + TUNING.capacity_s + TUNING.overtime_s * self.least_kills
        return TUNING.start_s + phases + TUNING.drain_s + TUNING.settle_s + TUNING.stop_s


def run(plan: Plan) -> Outcome:
    """Build, start, soak, stop.

    Raises:
        LoadError, ServerError, ManagementError, ArchiverFailed: it cannot be run; the message says why.
    """
    subjects = models.subjects(plan.mode)
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        store = Path(folder)
        progress(f"archives: {', '.join(subject.name for subject in subjects)}")
        with aside():
            models.build(subjects, store)
        with started(store) as server:
            for subject in subjects:
                progress(f"registers {subject.name}")
                models.register(server, subject)
            served = {subject.name: models.served(server, subject, TUNING.timeout_s) for subject in subjects}
            return asyncio.run(_Soak(plan, subjects, server, served, _canaries(plan, subjects, served)).outcome())


def _canaries(plan: Plan, subjects: Sequence[Subject], served: dict[str, Served]) -> Canaries:
    kept = {}
    for subject in subjects:
        every = asked_alone(served[subject.name], candidates(subject.task, plan.seed), subject.task)
        kept[subject.name] = chosen(every)
        progress(f"{subject.name}: {len(kept[subject.name])} canaries of {len(every)} candidates")
    try:
        return Canaries(kept)
    except ValueError as error:
        raise LoadError(str(error)) from None


class _Soak:
    """The phases of one run on a server whose models are ready."""

    def __init__(
        self, plan: Plan, subjects: Sequence[Subject], server: Server, served: dict[str, Served], canaries: Canaries
    ) -> None:
        self._plan = plan
        self._subjects = subjects
        self._server = server
        self._canaries = canaries
        self._ledger = Ledger()
        self._samples: list[Sample] = []
        targets = {name: each.target() for name, each in served.items()}
        mix = (subjects, targets, canaries, self._ledger, plan.seed)
        self._traffic, self._misbehaviour = Traffic(*mix), Misbehaviour(*mix)

    async def outcome(self) -> Outcome:
        """Go through the phases."""
        plan, clients = self._plan, TUNING.clients * len(self._subjects)
        problems: list[str] = []
        async with self._traffic.session() as session:
            self._ledger.phase = CAPACITY
            window_s = min(TUNING.capacity_s, 10 * plan.minutes)
            capacity = await self._traffic.closed_loop(session, clients, TUNING.warm_up_s, window_s)
            rate = max(1.0, TUNING.load * capacity)
            progress(f"capacity {capacity:.0f}/s; goes on with {rate:.0f}/s")
            is_over = asyncio.Event()
            async with self._watched():
                sending = asyncio.create_task(self._traffic.open_loop(session, rate, is_over))
                misbehaving = asyncio.create_task(self._misbehaviour.go_on(is_over))
                opens_s, closes_s = await self._phases()
                is_over.set()
                progress(f"waits for {self._ledger.in_flight.total()} answers")
                _, late = await asyncio.wait([sending, misbehaving], timeout=TUNING.drain_s)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late, timeout=TUNING.settle_s)
                for task in (sending, misbehaving):
                    if task.done() and not task.cancelled() and (error := task.exception()):
                        problems.append(f"the generator failed: {error!r}")
        await self._settled()
        setting = Setting(
            mode=plan.mode,
            minutes=plan.minutes,
            seed=plan.seed,
            least_kills=plan.least_kills,
            capacity_per_s=capacity,
            clients=clients,
            rate_per_s=rate,
            shares={subject.name: subject.share for subject in self._subjects},
            canaries={name: len(kept) for name, kept in self._canaries.by_model.items()},
        )
        processes = held(self._samples, opens_s, closes_s)
        return Outcome(setting, self._ledger, self._misbehaviour.counts, processes, problems)

    async def _phases(self) -> tuple[float, float]:
        """Wait through both; returns when the steady one began and ended."""
        plan = self._plan
        opens_s = time.perf_counter()
        closes_s = opens_s + TUNING.steady * 60 * plan.minutes
        ends_s = opens_s + 60 * plan.minutes
        self._ledger.phase = STEADY
        progress(f"steady for {closes_s - opens_s:.0f} s")
        await asyncio.sleep(closes_s - time.perf_counter())
        self._ledger.phase = KILLS
        progress(f"kills for {ends_s - closes_s:.0f} s, at least {plan.least_kills}")
        if (java := self._server.pid()) is None:
            return opens_s, closes_s
        reaper = Reaper(self._subjects, self._server.management, java, self._ledger)
        await reaper.go_on(ends_s, plan.least_kills, ends_s + TUNING.overtime_s * plan.least_kills)
        return opens_s, closes_s

    async def _settled(self) -> None:
        """Give the server a while to close what was left open, and look once more."""
        await asyncio.sleep(TUNING.settle_s)
        self._samples += await asyncio.to_thread(self._look)

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                self._samples += await asyncio.to_thread(self._look)
                await asyncio.sleep(TUNING.look_s)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()

    def _look(self) -> list[Sample]:
        pids = {} if (java := self._server.pid()) is None else {JAVA: java}
        for subject in self._subjects:
            try:
                workers = self._server.management.describe(subject.name)["workers"]
            except ManagementError:
                # A server that is gone shows in every other figure.
                continue
            for worker in workers:
                if worker["status"] == "READY":
                    pids[subject.name] = int(worker["pid"])
        return look(time.perf_counter(), pids)
