"""Rules for the end of a measurement other than a duration: a number of answers, or numbers that stand still.

A rule is awaited when the window opens, and the window closes when it returns (`Attack.until`).
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from load.results import Exchange, Latencies, Recording

# perf_analyzer's own defaults: windows at the end that must agree, length of a window in s, most that a window may be
# off their mean in %, and windows after which a measurement is given up.
STABLE_WINDOWS, INTERVAL_S, PERCENTAGE, MAX_TRIALS = 3, 5.0, 10.0, 10
# Seconds between two looks at how many answers came, so that a look costs no measurable time.
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Answered:
    """Waits until so many requests that were due within the window have ended."""

    requests: int

    async def __call__(self, recording: Recording) -> None:
        """Wait for them."""
        seen = counted = 0
        while counted < self.requests:
            await asyncio.sleep(POLL_S)
            new = recording.exchanges[seen:]
            seen += len(new)
            counted += sum(exchange.due_s >= recording.opens_s for exchange in new)


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of a measurement: when it opened, good answers per second, and the latency that must stand still."""

    opens_s: float
    rate_per_s: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Stable:
    """Waits until the last three windows agree, as perf_analyzer does; these three are the measurement.

    Attributes:
        interval_s: length of a window.
        percentage: most that throughput and latency of a window may be off the mean of the three, in %.
        max_trials: number of windows after which it is given up, which makes the run not valid.
        percentile: percentile of the latency that must stand still; None means its mean.
        request_count: least number of answers of a window, which lasts on until it has them.
    """

    interval_s: float = INTERVAL_S
    percentage: float = PERCENTAGE
    max_trials: int = MAX_TRIALS
    percentile: float | None = None
    request_count: int = 0

    async def __call__(self, recording: Recording) -> None:
        """Wait for them, and put the opening of the recording's window off to the first of them."""
        windows: list[Window] = []
        while reason := unstable(windows, self.percentage):
            if len(windows) >= self.max_trials:
                recording.doubts.append(f"not stable after {len(windows)} windows: {reason}")
                break
            seen, opens_s = len(recording.exchanges), time.perf_counter()
            await asyncio.sleep(self.interval_s)
            while len(recording.exchanges) - seen < self.request_count:
                await asyncio.sleep(POLL_S)
            windows.append(self._window(recording.exchanges[seen:], opens_s, time.perf_counter()))
        recording.opens_s = windows[-STABLE_WINDOWS:][0].opens_s

    def _window(self, exchanges: Sequence[Exchange], opens_s: float, closes_s: float) -> Window:
        good = Latencies(exchange.latency_s for exchange in exchanges if exchange.is_good)
        latency_ms = 0.0
        if good.count:
            latency_ms = (
                good.statistics_ms()["mean"] if self.percentile is None else good.percentile_ms(self.percentile)
            )
        return Window(opens_s, good.count / (closes_s - opens_s), latency_ms)


def unstable(windows: Sequence[Window], percentage: float) -> str | None:
    """Return a phrase for what does not stand still yet; None when the last windows agree within `percentage`."""
    last = windows[-STABLE_WINDOWS:]
    if len(last) < STABLE_WINDOWS:
        return f"{len(last)} of {STABLE_WINDOWS} windows"
    for name, values in (
        ("throughput", [window.rate_per_s for window in last]),
        ("latency", [window.latency_ms for window in last]),
    ):
        mean = fmean(values)
        worst = max(abs(value - mean) for value in values)
        if not mean or worst > mean * percentage / 100:
            spread = 100 * worst / mean if mean else 100
            return f"{name} of the last {STABLE_WINDOWS} windows is off its mean by {spread:.0f} %"
    return None
