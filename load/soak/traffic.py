"""The traffic: requests of the mix, each a canary, entered in the ledger.

closed_loop   clients that always wait: what the server can do with this very mix
open_loop     Poisson arrivals at a rate, whatever has become of those before
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import aiohttp

from load.generate.pacers import Poisson
from load.generate.target import Target
from load.measure.exchange import NO_ANSWER, OK
from load.soak.canaries import Canaries
from load.soak.ledger import Ledger
from load.soak.models import Subject


@dataclass(frozen=True, slots=True)
class Tuning:
    """The limits of the generator."""

    # Requests of one model in flight: more than its queue and its batch or window hold, so that 503 is seen, and few
    # enough for the connections of six models to stay below the 1024 descriptors that most systems allow.
    in_flight: int = 128
    # Seconds that a client of the closed loop waits when it got no answer.
    pause_s: float = 0.1


TUNING = Tuning()


class Traffic:
    """Sends the mix through one pool of connections."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        targets: dict[str, Target],
        canaries: Canaries,
        ledger: Ledger,
        seed: int,
    ) -> None:
        """Describe the mix.

        Args:
            subjects: the models and their shares.
            targets: where each is asked, by its name; their checks are replaced by the canaries'.
            canaries: what is sent.
            ledger: where it is entered.
            seed: decides on who is asked what.
        """
        self._subjects = subjects
        self._shares = [subject.share for subject in subjects]
        self._targets = {
            name: Target(target.url, target.headers, target.timeout_s, partial(canaries.verdict, name))
            for name, target in targets.items()
        }
        self._canaries = canaries
        self._ledger = ledger
        self._chance = random.Random(f"traffic/{seed}")
        self._seed = seed

    def session(self) -> aiohttp.ClientSession:
        """Open the pool; the caller closes it."""
        return next(iter(self._targets.values())).session()

    async def closed_loop(
        self, session: aiohttp.ClientSession, clients: int, warm_up_s: float, window_s: float
    ) -> float:
        """Measure the capacity.

        Returns:
            Answers with status 200 per second, within the window.
        """
        opens_s = time.perf_counter() + warm_up_s
        closes_s = opens_s + window_s
        good = 0

        async def client() -> None:
            nonlocal good
            while time.perf_counter() < closes_s:
                status = await self._send(session, self._drawn())
                if status == OK and opens_s <= time.perf_counter() < closes_s:
                    good += 1
                elif status == NO_ANSWER:
                    await asyncio.sleep(TUNING.pause_s)

        await asyncio.gather(*(client() for _ in range(clients)))
        return good / window_s

    async def open_loop(self, session: aiohttp.ClientSession, rate_per_s: float, is_over: asyncio.Event) -> None:
        """Send until it is over, and wait for the last answer; whoever cancels this leaves requests in flight."""
        under_way: set[asyncio.Task[int]] = set()
        started_s = time.perf_counter()
        try:
            for due_s in Poisson(rate_per_s, self._seed).due_s():
                # Always a turn for the others, even where this is behind its schedule.
                await asyncio.sleep(max(0.0, started_s + due_s - time.perf_counter()))
                if is_over.is_set():
                    break
                subject = self._drawn()
                if self._ledger.in_flight[subject.name] >= TUNING.in_flight:
                    self._ledger.held_back(subject.name)
                    continue
                task = asyncio.create_task(self._send(session, subject))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            if under_way:
                await asyncio.wait(under_way)
        finally:
            for task in under_way:
                task.cancel()

    def _drawn(self) -> Subject:
        (subject,) = self._chance.choices(self._subjects, self._shares)
        return subject

    async def _send(self, session: aiohttp.ClientSession, subject: Subject) -> int:
        """Send one canary of a model; nothing that goes wrong stays unentered."""
        name = subject.name
        canaries = self._canaries.by_model[name]
        source = self._chance.randrange(len(canaries))
        phase = self._ledger.sent(name)
        try:
            exchange = await self._targets[name].send(session, source, canaries[source].content)
        except Exception as error:  # what Target.send does not expect is a request without an answer all the same
            self._ledger.lost(name, phase, repr(error))
            return NO_ANSWER
        self._ledger.ended(name, phase, exchange)
        return exchange.status
