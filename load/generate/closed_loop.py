"""A closed loop has N clients, each of which sends its next request when its answer has come.

The load never stops between warm-up and window, so that the window sees the micro-batches of steady traffic. Requests
that are in flight when the window closes are waited for, and count.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from load.generate.attack import Sender
from load.measure.exchange import NO_ANSWER
from load.measure.rates import Rate, of_cycles
from load.measure.recording import Recording

# Seconds that a client waits when it got no answer at all: a dead server is not worth a busy loop.
PAUSE_AFTER_NO_ANSWER_S = 0.1


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Concurrent clients without pauses.

    Attributes:
        clients: number of clients; each counts one query at least, even where that takes longer than the window.
        warm_up_requests: least number of queries that each client sends before the window opens.
        samples: number of requests of a query, sent at once; a query is answered when all of them are.
    """

    clients: int
    warm_up_requests: int = 1
    samples: int = 1

    @property
    def rate(self) -> Rate:
        """The definition of its throughput."""
        return of_cycles

    async def drive(self, sender: Sender, recording: Recording) -> None:
        """Send until the recording is closed and every answer has come."""
        cold = self.clients

        async def client(number: int) -> None:
            nonlocal cold
            sources = sender.inputs.order(number)
            sent = counted = 0
            while not (recording.is_closed and (counted or recording.is_stopped)):
                counted += recording.is_open
                await self._query(sender, sources, number)
                sent += 1
                if sent == self.warm_up_requests:
                    cold -= 1
                    if cold == 0:
                        recording.warm()

        if self.warm_up_requests == 0:
            recording.warm()
        await asyncio.gather(*(client(number) for number in range(self.clients)))

    async def _query(self, sender: Sender, sources: Iterator[int], client: int) -> None:
        if await sender.send([next(sources) for _ in range(self.samples)], client=client) == NO_ANSWER:
            await asyncio.sleep(PAUSE_AFTER_NO_ANSWER_S)

    def __str__(self) -> str:
        return f"{self.clients} clients" if self.clients > 1 else "1 client"
