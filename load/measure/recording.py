"""The recording of a run: the one thing that changes while it lasts."""

import asyncio
import time
from dataclasses import dataclass, field
from math import inf

from load.measure.exchange import Exchange
from load.measure.exchanges import Exchanges

# Bytes of memory that the exchanges of one command may take unless it is told otherwise: 10 million requests, an hour
# at 2,900/s.
MAX_MEMORY_BYTES = 2 << 30


@dataclass(slots=True)
class Recording:
    """Raw results of a run, warm-up included; requests count that were due after `opens_s`.

    Attributes:
        exchanges: everything that was sent, in the order of the answers.
        started_s: when the first request could be sent, in seconds of the clock that the exchanges are timed by.
        opens_s, closes_s: beginning and end of the window, on that clock; infinite until it opens and closes.
        in_flight: requests sent and not answered yet.
        throttled: requests that were sent late because the limit of requests in flight was reached.
        unsent: requests that were due within the window and never sent.
        doubts: reasons why the numbers are not to be believed, beside those that `summarise` finds.
        cpu_s: processor time in seconds that this process used within the window.
        limit_bytes: memory for the exchanges; when it is used up the window closes, whatever else was wanted.
    """

    exchanges: Exchanges = field(default_factory=Exchanges)
    started_s: float = field(default_factory=time.perf_counter)
    opens_s: float = inf
    closes_s: float = inf
    in_flight: int = 0
    throttled: int = 0
    unsent: int = 0
    doubts: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    limit_bytes: int = MAX_MEMORY_BYTES
    _warm: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _full: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, exchange: Exchange) -> None:
        """Record an exchange."""
        self.exchanges.append(exchange)
        if self.exchanges.memory_bytes >= self.limit_bytes and not self.is_full:
            self.doubts.append(f"cut short: {len(self.exchanges)} requests take as much memory as --max-memory allows")
            self._full.set()

    async def until_full(self) -> None:
        """Wait until the limit is reached."""
        await self._full.wait()

    @property
    def is_full(self) -> bool:
        """Whether the limit was reached."""
        return self._full.is_set()

    @property
    def is_open(self) -> bool:
        """Whether requests that are sent now count."""
        return self.opens_s < inf

    @property
    def is_closed(self) -> bool:
        """Whether no further request is wanted."""
        return self.closes_s < inf

    @property
    def is_stopped(self) -> bool:
        """Whether the run was ended early."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the run early; what was measured is kept."""
        self._stopped.set()

    def warm(self) -> None:
        """Say that the load is at its height."""
        self._warm.set()

    async def until_warm(self) -> None:
        """Wait until the load is at its height."""
        await self._warm.wait()

    def close(self) -> None:
        """Say that no further request is wanted, and close the window now."""
        self.closes_s = time.perf_counter()
        self._closed.set()

    async def until_closed(self) -> None:
        """Wait until no further request is wanted."""
        await self._closed.wait()

    async def until_stopped(self) -> None:
        """Wait until the run is ended early."""
        await self._stopped.wait()
