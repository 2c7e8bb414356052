"""An attack is one run: a load on a target, for as long as a rule says.

    load.drive    sends through a Sender, from the first request of the warm-up to the last answer
    Attack        opens the window when the load is warm, closes it when the rule passes  -> Recording -> Summary

It runs on one event loop in the caller's process: the caller only waits meanwhile, so that a process of its own would
cost the machine the same and a protocol more.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from load.generate import precise_loop
from load.generate.inputs import Inputs
from load.generate.target import Target
from load.generate.windows import Until
from load.measure.exchange import NO_ANSWER, Exchange, fault, together
from load.measure.rates import Rate
from load.measure.recording import Recording
from load.measure.summary import TUNING as VALIDITY
from load.measure.summary import Summary, summarise

# Seconds that requests in flight are given when a run is ended early: a person who pressed Ctrl-C waits no longer.
STOP_GRACE_S = 2.0


class Sender:
    """Sends inputs to a target and records what comes back."""

    def __init__(self, target: Target, inputs: Inputs, recording: Recording, session: aiohttp.ClientSession) -> None:
        self.inputs = inputs
        self._target = target
        self._recording = recording
        self._session = session

    async def send(self, sources: Sequence[int], *, client: int = 0, due_s: float | None = None) -> int:
        """Send one query and wait for its answer.

        Args:
            sources: numbers of the inputs; several are sent at once and count as one exchange.
            client: number of the client that sends, in a closed loop.
            due_s: when the query was to be sent, in seconds of `time.perf_counter`; None means now.

        Returns:
            The HTTP status, or NO_ANSWER.
        """
        self._recording.in_flight += 1
        try:
            if len(sources) == 1:
                exchange = await self._exchange(sources[0], client, due_s)
            else:
                samples = (self._exchange(source, client, due_s) for source in sources)
                exchange = together(await asyncio.gather(*samples))
        finally:
            self._recording.in_flight -= 1
        self._recording.add(exchange)
        return exchange.status

    async def _exchange(self, source: int, client: int, due_s: float | None) -> Exchange:
        """Send one request; an exception that nobody foresaw is the end of that request and not of the run."""
        sent_s = time.perf_counter()
        item = self.inputs.items[source]
        try:
            return await self._target.send(self._session, source, item, client=client, due_s=due_s)
        except Exception as problem:
            return Exchange(
                due_s=sent_s if due_s is None else due_s,
                sent_s=sent_s,
                answered_s=time.perf_counter(),
                status=NO_ANSWER,
                client=client,
                source=source,
                sent_bytes=len(item.body),
                error=fault(problem),
            )


class Load(Protocol):
    """A way to send: `ClosedLoop` or `OpenLoop`."""

    @property
    def rate(self) -> Rate:
        """The definition of its throughput."""

    async def drive(self, sender: Sender, recording: Recording) -> None:
        """Send until the recording is closed and every answer has come; say when the load is warm."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One run, before it is made: what is sent, where, how, and how long.

    Attributes:
        target: the address that requests are sent to.
        inputs: what is sent.
        load: says when requests are sent.
        until: says how long the window stays open.
        warm_up_s: least number of seconds under load before it opens.
        latency_threshold_ms: most latency of an answer that goodput counts; None counts every good answer.
        max_lag_ms: most lag at its p99 in a run that is valid, as `summarise` has it.
    """

    target: Target
    inputs: Inputs
    load: Load
    until: Until
    warm_up_s: float = 0.0
    latency_threshold_ms: float | None = None
    max_lag_ms: float = VALIDITY.max_lag_ms

    def run(self) -> Summary:
        """Send until the window has closed and every answer has come, and sum up."""
        return self.summarise(precise_loop.run(self.generate(Recording())))

    def summarise(self, recording: Recording) -> Summary:
        """Sum up a recording of this attack."""
        return summarise(recording, self.load.rate, self.latency_threshold_ms, self.max_lag_ms)

    async def generate(
        self, recording: Recording, beside: Callable[[Recording], Coroutine[Any, Any, None]] | None = None
    ) -> Recording:
        """Fill a recording, for callers with an event loop of their own.

        Args:
            recording: a new one; `recording.stop()` ends the run early.
            beside: a coroutine that is run meanwhile and cancelled at the end, such as a live display.

        Returns:
            The recording, with a window that has closed.
        """
        async with self.target.session() as session:
            recording.started_s = time.perf_counter()
            driver = asyncio.create_task(
                self.load.drive(Sender(self.target, self.inputs, recording, session), recording)
            )
            display = asyncio.create_task(beside(recording)) if beside else None
            try:
                await self._window(recording, driver)
                await _finish(driver, recording)
            finally:
                for task in (driver, display):
                    if task is not None:
                        task.cancel()
        return recording

    async def _window(self, recording: Recording, driver: "asyncio.Task[None]") -> None:
        ends = (recording.until_stopped, recording.until_full)
        await _first(driver, *(end() for end in ends), self._warm(recording))
        recording.opens_s = time.perf_counter()
        cpu_s = time.process_time()
        if not (recording.is_stopped or recording.is_full or driver.done()):
            await _first(driver, *(end() for end in ends), self.until.passes(recording))
        recording.cpu_s = time.process_time() - cpu_s
        recording.close()

    async def _warm(self, recording: Recording) -> None:
        await recording.until_warm()
        await asyncio.sleep(recording.started_s + self.warm_up_s - time.perf_counter())


async def _first(driver: "asyncio.Task[None]", *others: Coroutine[Any, Any, None]) -> None:
    """Wait until one of them has ended, and raise what it raised."""
    tasks = [asyncio.create_task(other) for other in others]
    try:
        done, _ = await asyncio.wait([driver, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


async def _finish(driver: "asyncio.Task[None]", recording: Recording) -> None:
    """Wait for the last answers, but not for long where the run was ended early."""
    stopped = asyncio.create_task(recording.until_stopped())
    try:
        await asyncio.wait([driver, stopped], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([driver], timeout=STOP_GRACE_S if recording.is_stopped else None)
    finally:
        stopped.cancel()
    if driver.done():
        driver.result()
