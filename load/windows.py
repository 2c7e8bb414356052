"""Windows as perf_analyzer has them: a measurement lasts until its numbers are stable."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from load.results import Latencies, Recording

# Windows at the end that must agree: perf_analyzer's rule.
STABLE_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class Stable:
    """Waits until the last three windows agree, which then are the measurement; the defaults are perf_analyzer's."""

    interval_s: float = 5.0  # length of a window
    percentage: float = 10.0  # most that throughput and latency of a window may be off the mean of the three
    max_trials: int = 10  # windows after which it is given up, and the run is not valid
    percentile: float | None = None  # of the latency; None means its mean

    async def __call__(self, recording: Recording) -> None:
        """Wait, and put the opening of the recording's window off to that of the first of the three."""
        opened_s: list[float] = []
        windows: list[tuple[float, float]] = []
        while (reason := unstable(windows, self.percentage)) and len(windows) < self.max_trials:
            seen = len(recording.exchanges)
            opened_s.append(time.perf_counter())
            await asyncio.sleep(self.interval_s)
            good = Latencies(exchange.latency_s for exchange in recording.exchanges[seen:] if exchange.is_good)
            latency_ms = good.statistics_ms().get("mean", 0.0)
            if self.percentile is not None and good:
                latency_ms = good.percentile_ms(self.percentile)
            windows.append((len(good) / (time.perf_counter() - opened_s[-1]), latency_ms))
        if reason:
            recording.doubts.append(f"not stable after {len(windows)} windows: {reason}")
        recording.opens_s = opened_s[-STABLE_WINDOWS:][0]


def unstable(windows: Sequence[tuple[float, float]], percentage: float) -> str | None:
    """Return what is not stable yet in windows of (answers per second, latency); None where the last agree."""
    last = windows[-STABLE_WINDOWS:]
    if len(last) < STABLE_WINDOWS:
        return f"{len(last)} of {STABLE_WINDOWS} windows"
    for name, values in zip(("throughput", "latency"), zip(*last, strict=True), strict=True):
        mean = fmean(values)
        spread = 100 * max(abs(value - mean) for value in values) / mean if mean else 100.0
        if spread > percentage or not mean:
            return f"{name} of the last {STABLE_WINDOWS} windows is off its mean by {spread:.0f} %"
    return None
