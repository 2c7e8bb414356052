"""Load on the gateway while something happens to what is behind it, or beside it.

under_load: Poisson arrivals through the gateway <- meanwhile(), in a thread -> Summary
slow_clients: connections that send a byte a second, in a thread of their own
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from load.generate import Attack, ClosedLoop, OpenLoop, Target
from load.inputs import Inputs
from load.results import Recording, Summary
from load.schedules import Poisson

# Seconds of load before and after what happens.
AROUND_S = 1.0


def capacity_per_s(url: str, inputs: Inputs, clients: int = 16, duration_s: float = 3.0) -> float:
    """Measure what is answered when clients always wait."""
    summary = Attack(Target(url), inputs, ClosedLoop(clients), duration_s, warm_up_s=1.0).run()
    assert not summary.failures
    return summary.throughput_per_s


def under_load(url: str, inputs: Inputs, rate_per_s: float, meanwhile: Callable[[], None]) -> Summary:
    """Send at a rate for as long as something takes; every request of that time is in the summary."""

    async def until(_recording: Recording) -> None:
        await asyncio.sleep(AROUND_S)
        await asyncio.to_thread(meanwhile)
        await asyncio.sleep(AROUND_S)

    return Attack(Target(url), inputs, OpenLoop(Poisson(rate_per_s, seed=1)), until=until).run()


def all_answered(summary: Summary) -> bool:
    """Whether every request had an answer, and its status was 200."""
    return set(summary.statuses) == {200} and not summary.errors and not summary.unsent


@dataclass
class Slow:
    """What slow clients have seen.

    Attributes:
        most: how many were connected at once.
        closed: how many connections the gateway has ended.
    """

    most: int = 0
    closed: int = 0
    _now: int = field(default=0, repr=False)

    async def client(self, host: str, port: int, at_once: bytes, slowly: bytes, is_over: threading.Event) -> None:
        """Send a byte a second until it is over; where the gateway ends the connection, begin anew."""
        while not is_over.is_set():
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError:
                await asyncio.sleep(1)
                continue
            self._now += 1
            self.most = max(self.most, self._now)
            try:
                writer.write(at_once)
                for byte in slowly:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    if is_over.is_set():
                        return
                    try:
                        await asyncio.wait_for(reader.read(1), 1)
                    except TimeoutError:
                        continue
                    break
                self.closed += 1
            except OSError:
                self.closed += 1
            finally:
                self._now -= 1
                writer.close()


@contextmanager
def slow_clients(url: str, count: int) -> Iterator[Slow]:
    """Keep so many connections that send a byte a second: half of them of a head, half of a body."""
    address = urlsplit(url)
    head = f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: image/jpeg\r\n"
    body = f"{head}Content-Length: 100000\r\n\r\n"
    is_over, slow = threading.Event(), Slow()

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                at_once, slowly = (b"", f"{head}X-Slow: {'x' * 1000}") if number % 2 else (body.encode(), "x" * 1000)
                group.create_task(
                    slow.client(address.hostname or "", address.port or 80, at_once, slowly.encode(), is_over)
                )

    thread = threading.Thread(target=asyncio.run, args=(all_of_them(),))
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while slow.most < count and time.monotonic() < deadline:
            time.sleep(0.1)
        yield slow
    finally:
        is_over.set()
        thread.join(30)
