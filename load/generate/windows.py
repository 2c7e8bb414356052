"""How long to measure: for a while, for a number of requests, or until the numbers stand still.

    window opens -> Until.passes -> window closes

A `Stability` cuts time into windows as perf_analyzer does, and may let the measurement begin later than it opened.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from load.measure.exchange import Exchange
from load.measure.latencies import Latencies
from load.measure.recording import Recording

# perf_analyzer's rule: the last three windows must agree.
STABLE_WINDOWS = 3
POLL_S = 0.01


class Until(Protocol):
    """A rule for the end of a measurement."""

    async def passes(self, recording: Recording) -> None:
        """Return when it is over; may add to the recording's doubts, and put off its opening."""


@dataclass(frozen=True, slots=True)
class Duration:
    """So many seconds."""

    duration_s: float

    async def passes(self, recording: Recording) -> None:
        """See `Until.passes`."""
        await asyncio.sleep(recording.opens_s + self.duration_s - time.perf_counter())


@dataclass(frozen=True, slots=True)
class Requests:
    """At least so many answers of requests that count."""

    count: int

    async def passes(self, recording: Recording) -> None:
        """See `Until.passes`."""
        seen, counted = 0, 0
        while counted < self.count:
            await asyncio.sleep(POLL_S)
            new = recording.exchanges[seen:]
            seen += len(new)
            counted += sum(exchange.due_s >= recording.opens_s for exchange in new)


@dataclass(frozen=True, slots=True)
class Window:
    """One piece of a measurement: the answers that came in it.

    Attributes:
        opens_s: its beginning.
        rate_per_s: good answers per second.
        latency_ms: what is to stand still: a percentile, or the mean.
    """

    opens_s: float
    rate_per_s: float
    latency_ms: float


def unstable(windows: Sequence[Window], percentage: float) -> str | None:
    """What does not stand still yet, as a phrase; None when the last STABLE_WINDOWS agree.

    perf_analyzer's rule: throughput and latency of each of them lie within `percentage` of their own mean.
    """
    last = windows[-STABLE_WINDOWS:]
    if len(last) < STABLE_WINDOWS:
        return f"{len(last)} of {STABLE_WINDOWS} windows"
    for name, values in (
        ("throughput", [window.rate_per_s for window in last]),
        ("latency", [window.latency_ms for window in last]),
    ):
        mean = sum(values) / len(values)
        worst = max(abs(value - mean) for value in values)
        if not mean or worst > mean * percentage / 100:
            spread = 100 * worst / mean if mean else 100
            return f"{name} of the last {STABLE_WINDOWS} windows is off its mean by {spread:.0f} %"
    return None


@dataclass(frozen=True, slots=True)
class Stability:
    """Until the last three windows agree; the measurement is those three.

    Attributes:
        interval_s: length of a window.
        percentage: how far a window may be off the mean of the three.
        max_trials: windows before it is given up.
        percentile: of the latency that must stand still; None for the mean.
        request_count: a window lasts on until it has this many answers.
    """

    interval_s: float = 5.0
    percentage: float = 10.0
    max_trials: int = 10
    percentile: float | None = None
    request_count: int = 0

    async def passes(self, recording: Recording) -> None:
        """See `Until.passes`."""
        windows: list[Window] = []
        while reason := unstable(windows, self.percentage):
            if len(windows) >= self.max_trials:
                recording.doubts.append(f"not stable after {len(windows)} windows: {reason}")
                break
            windows.append(await self._window(recording))
        recording.opens_s = windows[-STABLE_WINDOWS:][0].opens_s

    async def _window(self, recording: Recording) -> Window:
        seen, opens_s = len(recording.exchanges), time.perf_counter()
        await asyncio.sleep(self.interval_s)
        while len(recording.exchanges) - seen < self.request_count:
            await asyncio.sleep(POLL_S)
        return self._seen(recording.exchanges[seen:], opens_s, time.perf_counter())

    def _seen(self, exchanges: Sequence[Exchange], opens_s: float, closes_s: float) -> Window:
        latencies = Latencies(exchange.latency_s for exchange in exchanges if exchange.is_good)
        wanted_ms = 0.0
        if latencies.count:
            wanted_ms = latencies.mean_ms if self.percentile is None else latencies.percentile_ms(self.percentile)
        return Window(opens_s, latencies.count / (closes_s - opens_s), wanted_ms)
