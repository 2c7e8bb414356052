"""Says how long to measure: for a while, for a number of requests, or until the numbers stand still.

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


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says when numbers stand still. Unless said otherwise these are perf_analyzer's own defaults."""

    # Windows at the end that must agree.
    stable_windows: int = 3
    # Length of a window, s.
    interval_s: float = 5.0
    # Most that a window may be off the mean of those at the end, in %.
    percentage: float = 10.0
    # Windows after which a measurement is given up.
    max_trials: int = 10
    # Seconds between two looks at how many answers came; chosen, so that a look costs no measurable time.
    poll_s: float = 0.01


TUNING = Tuning()


class Until(Protocol):
    """A rule for the end of a measurement."""

    async def passes(self, recording: Recording) -> None:
        """Wait until the measurement is over; may add to the recording's doubts, and put off its opening."""


@dataclass(frozen=True, slots=True)
class Duration:
    """A measurement of so many seconds."""

    duration_s: float

    async def passes(self, recording: Recording) -> None:
        """See `Until.passes`."""
        await asyncio.sleep(recording.opens_s + self.duration_s - time.perf_counter())


@dataclass(frozen=True, slots=True)
class Requests:
    """A measurement that has at least so many answers of requests that count."""

    count: int

    async def passes(self, recording: Recording) -> None:
        """See `Until.passes`."""
        seen, counted = 0, 0
        while counted < self.count:
            await asyncio.sleep(TUNING.poll_s)
            new = recording.exchanges[seen:]
            seen += len(new)
            counted += sum(exchange.due_s >= recording.opens_s for exchange in new)


@dataclass(frozen=True, slots=True)
class Window:
    """One piece of a measurement, summed up.

    Attributes:
        opens_s: when it began, in seconds of the recording's clock.
        rate_per_s: good answers per second that came in it.
        latency_ms: the statistic of their latencies that is to stand still: a percentile, or the mean.
    """

    opens_s: float
    rate_per_s: float
    latency_ms: float


def unstable(windows: Sequence[Window], percentage: float) -> str | None:
    """Say what does not stand still yet.

    perf_analyzer's rule is that throughput and latency of each of the last windows lie within `percentage` of their
    mean.

    Args:
        windows: all windows so far.
        percentage: most that a window may be off the mean, in %.

    Returns:
        A phrase; None when the last windows agree.
    """
    wanted = TUNING.stable_windows
    last = windows[-wanted:]
    if len(last) < wanted:
        return f"{len(last)} of {wanted} windows"
    for name, values in (
        ("throughput", [window.rate_per_s for window in last]),
        ("latency", [window.latency_ms for window in last]),
    ):
        mean = sum(values) / len(values)
        worst = max(abs(value - mean) for value in values)
        if not mean or worst > mean * percentage / 100:
            spread = 100 * worst / mean if mean else 100
            return f"{name} of the last {wanted} windows is off its mean by {spread:.0f} %"
    return None


@dataclass(frozen=True, slots=True)
class Stability:
    """A measurement that lasts until its last three windows agree, and is those three.

    Attributes:
        interval_s: length of a window.
        percentage: most that a window may be off the mean of the three, in %.
        max_trials: number of windows after which it is given up.
        percentile: percentile of the latency that must stand still; None means its mean.
        request_count: least number of answers of a window, which lasts on until it has them.
    """

    interval_s: float = TUNING.interval_s
    percentage: float = TUNING.percentage
    max_trials: int = TUNING.max_trials
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
        recording.opens_s = windows[-TUNING.stable_windows :][0].opens_s

    async def _window(self, recording: Recording) -> Window:
        seen, opens_s = len(recording.exchanges), time.perf_counter()
        await asyncio.sleep(self.interval_s)
        while len(recording.exchanges) - seen < self.request_count:
            await asyncio.sleep(TUNING.poll_s)
        return self._seen(recording.exchanges[seen:], opens_s, time.perf_counter())

    def _seen(self, exchanges: Sequence[Exchange], opens_s: float, closes_s: float) -> Window:
        latencies = Latencies(exchange.latency_s for exchange in exchanges if exchange.is_good)
        wanted_ms = 0.0
        if latencies.count:
            wanted_ms = latencies.mean_ms if self.percentile is None else latencies.percentile_ms(self.percentile)
        return Window(opens_s, latencies.count / (closes_s - opens_s), wanted_ms)
