"""Runs an event loop whose timers are good to a tenth of a millisecond, without long pauses.

epoll counts its timeouts in whole milliseconds and asyncio rounds up, so a plain loop sends every request of a schedule
half a millisecond late on average. select() counts in microseconds but takes few descriptors: here it waits for one,
the epoll descriptor itself, whatever the number of connections.
"""

import asyncio
import gc
import select
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")
# Collections of the middle generation before a full one: so many never come.
NEVER = 1 << 30

if hasattr(selectors, "EpollSelector"):

    class PreciseSelector(selectors.EpollSelector):
        """epoll with timeouts in microseconds."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """Select like EpollSelector, but return when `timeout` seconds are over and no later."""
            if timeout is not None and timeout > 0:
                select.select([self], [], [], timeout)
                timeout = 0
            return super().select(timeout)
else:
    # kqueue counts in nanoseconds.
    PreciseSelector = selectors.DefaultSelector  # type: ignore[misc, assignment]


def run(coroutine: Coroutine[None, None, T]) -> T:
    """Run a coroutine like asyncio.run, on such a loop."""
    thresholds = gc.get_threshold()
    # A full collection walks everything that is there, which takes tens of ms; those of the young are enough.
    gc.set_threshold(*thresholds[:2], NEVER)
    try:
        return _run(coroutine)
    finally:
        gc.set_threshold(*thresholds)


def _run(coroutine: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PreciseSelector())) as runner:
        return runner.run(coroutine)
