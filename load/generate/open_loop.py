"""In an open loop requests leave by a schedule, whatever has become of those before.

Latency counts from the scheduled time. A server that stalls for two seconds keeps everybody waiting who was due
meanwhile, and here that shows; a closed loop would just send less (G. Tene calls that coordinated omission).
"""

import asyncio
import time
from dataclasses import dataclass
from itertools import count

from load.generate.attack import Sender
from load.generate.pacers import Pacer
from load.measure.rates import Rate, of_window
from load.measure.recording import Recording


@dataclass(frozen=True, slots=True)
class Tuning:
    """The limits of a generator that is behind."""

    # Requests in flight at once: each takes a connection, and so a descriptor, of this process and of the server; most
    # systems allow a process 1024.
    max_in_flight: int = 1000
    # Requests that are sent before answers are read again: 32 take some 4 ms (0.13 ms each, README, "What it costs").
    sends_without_pause: int = 32


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests by a schedule.

    Attributes:
        pacer: the schedule.
        max_in_flight: most requests in flight; where it is reached, requests are sent late and the run is invalid.
    """

    pacer: Pacer
    max_in_flight: int = TUNING.max_in_flight

    @property
    def rate(self) -> Rate:
        """The definition of its throughput."""
        return of_window

    async def drive(self, sender: Sender, recording: Recording) -> None:
        """Send until the recording is closed and every answer has come."""
        departures = _Departures(self, sender, recording)
        recording.warm()
        sending = asyncio.create_task(departures.keep_schedule())
        closed = asyncio.create_task(recording.until_closed())
        await asyncio.wait([sending, closed], return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        if sending.done():
            # It has no end of its own: without it nothing more would be sent, and nobody would know why.
            sending.result()
        sending.cancel()
        departures.send_overdue()
        await asyncio.gather(*departures.under_way)

    def __str__(self) -> str:
        return str(self.pacer)


class _Departures:
    """Lets the requests of one run leave."""

    def __init__(self, load: OpenLoop, sender: Sender, recording: Recording) -> None:
        self.under_way: set[asyncio.Task[int]] = set()
        self._free = asyncio.Semaphore(load.max_in_flight)
        self._sources = sender.inputs.order(0)
        self._schedule = (recording.started_s + offset_s for offset_s in load.pacer.due_s())
        self._due_s = next(self._schedule)
        self._load = load
        self._sender = sender
        self._recording = recording

    async def keep_schedule(self) -> None:
        """Send every request when it is due, without end."""
        for number in count():
            delay_s = self._due_s - time.perf_counter()
            if delay_s > 0 or number % TUNING.sends_without_pause == 0:
                await asyncio.sleep(max(0.0, delay_s))
            if self._free.locked():
                self._recording.throttled += 1
            await self._free.acquire()
            self._send()

    def send_overdue(self) -> None:
        """Send the requests that were due before the window closed and have not left, as far as the limit allows."""
        while self._due_s < self._recording.closes_s:
            if len(self.under_way) < self._load.max_in_flight:
                self._send()
            else:
                self._recording.unsent += 1
                self._due_s = next(self._schedule)

    def _send(self) -> None:
        task = asyncio.create_task(self._sender.send([next(self._sources)], due_s=self._due_s))
        self._due_s = next(self._schedule)
        self.under_way.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[int]) -> None:
        self.under_way.discard(task)
        self._free.release()
