"""A closed-loop generator: N clients, each sends its next request when its answer has come.

    warm-up (not counted) -> window opens when every client is warm -> duration -> last answers -> Summary

Load never stops between warm-up and window, so the window sees the batches of steady traffic. Requests are counted by
when they were sent; what is in flight when the window closes is waited for and counts.

It runs on one event loop in the caller's process: whoever measures only waits meanwhile, so a process of its own would
cost the machine the same and a protocol more.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from load.summary import NO_ANSWER, Exchange, Summary, summarise

# A client that got no answer at all does not try again at once: a dead server is not worth a busy loop.
PAUSE_AFTER_NO_ANSWER_S = 0.1


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What to send, and how hard.

    Attributes:
        url: of the prediction.
        bodies: each client cycles through them, every client from another one on.
        clients: concurrent requests.
        duration_s: of the window; a client counts one request even where its answers take longer than that.
        warm_up_requests: of each client, at least, before the window opens.
        content_type: of the bodies.
        timeout_s: of a request, then it counts as unanswered.
    """

    url: str
    bodies: Sequence[bytes]
    clients: int
    duration_s: float
    warm_up_requests: int = 1
    content_type: str = "application/octet-stream"
    timeout_s: float = 120.0

    def run(self) -> Summary:
        """Send until the window has closed and every answer has come."""
        return asyncio.run(self.generate())

    async def generate(self) -> Summary:
        """See `run`, for callers with an event loop of their own."""
        window = _Window(self.clients, self.duration_s)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.clients),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            headers={"Content-Type": self.content_type},
        ) as session:
            clients = (self._client(session, window, index) for index in range(self.clients))
            return summarise(await asyncio.gather(*clients))

    async def _client(self, session: aiohttp.ClientSession, window: "_Window", index: int) -> list[Exchange]:
        counted: list[Exchange] = []
        sent = 0
        while not window.is_closed or not counted:
            is_counted = window.is_open
            exchange = await self._exchange(session, self.bodies[(index + sent) % len(self.bodies)])
            sent += 1
            if is_counted:
                counted.append(exchange)
            elif sent == self.warm_up_requests:
                window.client_is_warm()
        return counted

    async def _exchange(self, session: aiohttp.ClientSession, body: bytes) -> Exchange:
        sent_at_s = time.perf_counter()
        try:
            async with session.post(self.url, data=body) as response:
                await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError):
            status = NO_ANSWER
        answered_at_s = time.perf_counter()
        if status == NO_ANSWER:
            await asyncio.sleep(PAUSE_AFTER_NO_ANSWER_S)
        return Exchange(sent_at_s, answered_at_s, status)


class _Window:
    """When requests count: from the moment the last client is warm, for a duration."""

    def __init__(self, clients: int, duration_s: float) -> None:
        self._cold_clients = clients
        self._duration_s = duration_s
        self._closes_at_s: float | None = None

    def client_is_warm(self) -> None:
        """One more client has had its warm-up; each says so once."""
        self._cold_clients -= 1
        if self._cold_clients == 0:
            self._closes_at_s = time.perf_counter() + self._duration_s

    @property
    def is_open(self) -> bool:
        """Whether every client is warm."""
        return self._closes_at_s is not None

    @property
    def is_closed(self) -> bool:
        """Whether the duration is over."""
        return self._closes_at_s is not None and time.perf_counter() >= self._closes_at_s
