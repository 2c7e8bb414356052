"""Sends requests by a load and records the responses, on one event loop of the caller's process.

    Attack.run -> the load sends through a Sender -> warm -> the window opens -> closes -> last responses -> Summary

Latency counts from the scheduled time. A server that stalls for two seconds delays every request that is due meanwhile:
an open loop shows it, a closed loop only sends less (G. Tene: coordinated omission).
"""

import asyncio
import contextlib
import gc
import io
import select
import selectors
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import orjson
from yarl import URL

from load.inputs import Inputs
from load.results import FAULT, NO_ANSWER, OK, REFUSED, Exchange, Recording, Refusal, Summary, Verdict, summarise
from load.schedules import Schedule

T = TypeVar("T")
Check = Callable[[int, bytes], Verdict]  # (number of the input, body of the response) -> verdict
Until = Callable[[Recording], Awaitable[None]]  # returns when the window of a recording is to close

TIMEOUT_S = 120.0  # seconds until a request fails: TorchServe's default of responseTimeout
# Bytes of the smallest body that is written in pieces, like a file: aiohttp warns of larger single writes.
LARGE_BODY_BYTES = 1 << 20
READ_BUFFER_BYTES = 1 << 18  # bytes per read: a list of 64 embeddings is 250 KB of JSON
# Seconds that a client waits after a request without a response, which avoids a busy loop on a dead server.
PAUSE_AFTER_NO_ANSWER_S = 0.1
# Most requests in flight: each takes a descriptor here and in the server; most systems allow a process 1024.
MAX_IN_FLIGHT = 1000
SENDS_WITHOUT_PAUSE = 32  # requests of an open loop that are sent before responses are read: 32 take some 4 ms
STOP_GRACE_S = 2.0  # seconds to wait for requests in flight after Ctrl-C


@dataclass(frozen=True, slots=True)
class Target:
    """The address of predictions, and the headers of every request, except its content type."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S  # of a request

    def session(self) -> aiohttp.ClientSession:
        """Open a pool with a kept-alive connection for each concurrent request; the caller closes it."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            headers=self.headers,
            # The server may share these cores, so a request must be cheap: no cookies, no inflation.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            read_bufsize=READ_BUFFER_BYTES,
        )


@dataclass(frozen=True, slots=True)
class Sender:
    url: URL
    inputs: Inputs
    check: Check | None
    recording: Recording
    session: aiohttp.ClientSession

    async def send(self, source: int, client: int = 0, due_s: float | None = None) -> int:
        """Send an input that was due at `due_s` (None is now), record it, and return its status."""
        item = self.inputs.items[source]
        data = item.body if len(item.body) < LARGE_BODY_BYTES else io.BytesIO(item.body)
        sent_s = time.perf_counter()
        exchange = Exchange(sent_s if due_s is None else due_s, sent_s, client=client, source=source)
        self.recording.in_flight += 1
        try:
            async with self.session.post(self.url, data=data, headers={"Content-Type": item.content_type}) as response:
                body = await response.read()
            exchange.answered_s = time.perf_counter()
            exchange.server_timing = response.headers.get("Server-Timing")
            if self.check is not None and response.status == OK:
                exchange.verdict = self.check(source, body)
            exchange.status = response.status
            is_counted = exchange.due_s >= self.recording.opens_s
            if response.status in REFUSED and self.recording.refusal is None and is_counted:
                reason = _error_type(body), response.headers.get("Retry-After")
                self.recording.refusal = Refusal(response.status, *reason, latency_ms=1e3 * exchange.latency_s)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            exchange.error = type(error).__name__
        except Exception as error:
            # A fault of this program ends one request, not the run.
            raised = traceback.extract_tb(error.__traceback__)[-1]
            exchange.error = f"{FAULT}{type(error).__name__} at {Path(raised.filename).name}:{raised.lineno}"
        finally:
            self.recording.in_flight -= 1
        exchange.answered_s = min(exchange.answered_s, time.perf_counter())
        self.recording.add(exchange)
        return exchange.status


def _error_type(body: bytes) -> str | None:
    """Return the `type` of an error, or of a list's first item; None if it has none."""
    with contextlib.suppress(orjson.JSONDecodeError, LookupError, TypeError):
        document = orjson.loads(body)
        items = document.get("predictions") if isinstance(document, dict) else document
        return str((items[0]["error"] if items else document)["type"])
    return None


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each send the next request after a response, also between warm-up and window."""

    clients: int

    kind = "concurrency"

    @property
    def value(self) -> float:
        return self.clients

    async def drive(self, sender: Sender) -> None:
        """Warm up with one request, send until the recording is closed, and count at least one response each."""
        recording, cold = sender.recording, set(range(self.clients))

        async def client(number: int) -> None:
            counted = 0
            for source in sender.inputs.order(number):
                if recording.closed.is_set() and (counted or recording.stopped.is_set()):
                    return
                counted += recording.opens_s < inf
                if await sender.send(source, number) == NO_ANSWER:
                    await asyncio.sleep(PAUSE_AFTER_NO_ANSWER_S)
                cold.discard(number)
                if not cold:
                    recording.warm.set()

        await asyncio.gather(*(client(number) for number in range(self.clients)))

    def __str__(self) -> str:
        return f"{self.clients} clients" if self.clients > 1 else "1 client"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests sent by a schedule; at `max_in_flight` they are sent late, which invalidates the run."""

    schedule: Schedule
    max_in_flight: int = MAX_IN_FLIGHT

    kind = "rate"

    @property
    def value(self) -> float:
        """Requests per second, in the long run."""
        return self.schedule.rate_per_s

    async def drive(self, sender: Sender) -> None:
        """Send until the recording is closed, and wait for every response."""
        recording, sources = sender.recording, sender.inputs.order(0)
        schedule = (recording.started_s + offset_s for offset_s in self.schedule.due_s())
        due_s = next(schedule)
        tasks: set[asyncio.Task[int]] = set()

        def send() -> None:
            nonlocal due_s
            task = asyncio.create_task(sender.send(next(sources), due_s=due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due_s = next(schedule)

        async def keep_schedule() -> None:
            for number in count():
                delay_s = due_s - time.perf_counter()
                if delay_s > 0 or number % SENDS_WITHOUT_PAUSE == 0:
                    await asyncio.sleep(max(0.0, delay_s))
                recording.throttled += len(tasks) >= self.max_in_flight
                while len(tasks) >= self.max_in_flight:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                send()

        recording.warm.set()
        await _first(keep_schedule(), recording.closed.wait())
        while due_s < recording.closes_s:  # requests that were due before the window closed count, sent or not
            if len(tasks) < self.max_in_flight:
                send()
            else:
                recording.unsent += 1
                due_s = next(schedule)
        await asyncio.gather(*tasks)

    def __str__(self) -> str:
        return str(self.schedule)


Load = ClosedLoop | OpenLoop


@dataclass(frozen=True, slots=True)
class Attack:
    target: Target
    inputs: Inputs
    load: Load
    duration_s: float = 10.0  # of the window
    warm_up_s: float = 0.0  # least time under load before it opens
    latency_threshold_ms: float | None = None  # most ms of a response that goodput counts; None means no limit
    until: Until | None = None  # closes the window in place of its duration
    check: Check | None = None  # checks responses with status 200

    def run(self) -> Summary:
        return self.summarise(run(self.generate(Recording())))

    def summarise(self, recording: Recording) -> Summary:
        return summarise(recording, isinstance(self.load, ClosedLoop), self.latency_threshold_ms)

    async def generate(self, recording: Recording) -> Recording:
        """Fill a new recording and return it; `recording.stop()` stops the run early."""
        async with self.target.session() as session:
            recording.started_s = time.perf_counter()
            sender = Sender(URL(self.target.url), self.inputs, self.check, recording, session)
            driver = asyncio.create_task(self.load.drive(sender))
            try:
                await _first(asyncio.shield(driver), self._window(recording), recording.closed.wait())
                recording.close()
                await _first(asyncio.shield(driver), recording.stopped.wait())
                await asyncio.wait([driver], timeout=STOP_GRACE_S)
            finally:
                driver.cancel()
        return recording

    async def _window(self, recording: Recording) -> None:
        await recording.warm.wait()
        await asyncio.sleep(recording.started_s + self.warm_up_s - time.perf_counter())
        recording.open()
        await (asyncio.sleep(self.duration_s) if self.until is None else self.until(recording))


async def _first(*awaitables: Awaitable[object]) -> None:
    """Wait until one awaitable has ended, cancel the others, and raise its exception."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


class _PreciseSelector(selectors.DefaultSelector):
    """A selector that is precise to 0.1 ms, as select() is: asyncio rounds up to epoll's milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like asyncio.run, with precise timers and without long pauses."""
    thresholds = gc.get_threshold()
    # A full collection visits all recorded requests, which takes tens of ms; the young generations suffice.
    gc.set_threshold(*thresholds[:2], 1 << 30)
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_PreciseSelector())) as runner:
            return runner.run(coroutine)
    finally:
        gc.set_threshold(*thresholds)
