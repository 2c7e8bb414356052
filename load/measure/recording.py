"""What a run has seen so far: the one thing that changes while it lasts."""

import asyncio
import time
from dataclasses import dataclass, field
from math import inf

from load.measure.exchange import Exchange


@dataclass(slots=True)
class Recording:
    """Raw results of a run, warm-up included. Requests count when they were due after `opens_s`.

    Attributes:
        exchanges: in the order of their answers.
        started_s: when the first request could be sent.
        opens_s, closes_s: the window of measurement; infinite until then.
        in_flight: requests sent and not answered yet.
        throttled: requests that were sent late because the limit of requests in flight was reached.
        unsent: requests that were due within the window and never sent.
        doubts: reasons why the numbers are not to be believed, beside those that `summarise` finds.
        cpu_s: processor time of this process within the window.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    started_s: float = field(default_factory=time.perf_counter)
    opens_s: float = inf
    closes_s: float = inf
    in_flight: int = 0
    throttled: int = 0
    unsent: int = 0
    doubts: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    _warm: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

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
        """Whether it was ended early."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the run early; what was measured is kept."""
        self._stopped.set()

    def warm(self) -> None:
        """Say that the load is at its height."""
        self._warm.set()

    async def until_warm(self) -> None:
        """Return when it is."""
        await self._warm.wait()

    def close(self) -> None:
        """No further request is wanted."""
        self.closes_s = time.perf_counter()
        self._closed.set()

    async def until_closed(self) -> None:
        """Return when no further request is wanted."""
        await self._closed.wait()

    async def until_stopped(self) -> None:
        """Return when the run was ended early."""
        await self._stopped.wait()
