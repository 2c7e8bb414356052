"""Windows as perf_analyzer takes them: a measurement that lasts until its numbers stand still."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from load.results import Latencies, Recording

# Windows at the end that must agree: perf_analyzer's rule.
STABLE_WINDOWS = 3


class Window(NamedTuple):
    """A piece of a measurement: when it opened, good answers per second, and the latency that must stand still."""

    opens_s: float
    rate_per_s: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Stable:
    """Waits until the last three windows agree, which then are the measurement; the defaults are perf_analyzer's."""

    interval_s: float = 5.0  # length of a window
    percentage: float = 10.0  # most that throughput and latency of a window may be off the mean of the three
    max_trials: int = 10  # windows after which it is given up, and the run is not valid
    percentile: float | None = None  # of the latency; None means its mean

    async def __call__(self, recording: Recording) -> None:
        """Wait, and put the opening of the recording's window off to that of the first of the three."""
        windows: list[Window] = []
        while (reason := unstable(windows, self.percentage)) and len(windows) < self.max_trials:
            seen, opens_s = len(recording.exchanges), time.perf_counter()
            await asyncio.sleep(self.interval_s)
            good = Latencies(exchange.latency_s for exchange in recording.exchanges[seen:] if exchange.is_good)
            latency_ms = good.statistics_ms().get("mean", 0.0)
            if self.percentile is not None and good:
                latency_ms = good.percentile_ms(self.percentile)
            windows.append(Window(opens_s, len(good) / (time.perf_counter() - opens_s), latency_ms))
        if reason:
            recording.doubts.append(f"not stable after {len(windows)} windows: {reason}")
        recording.opens_s = windows[-STABLE_WINDOWS:][0].opens_s


def unstable(windows: Sequence[Window], percentage: float) -> str | None:
    """Return a phrase for what does not stand still yet; None when the last windows agree within `percentage`."""
    last = windows[-STABLE_WINDOWS:]
    if len(last) < STABLE_WINDOWS:
        return f"{len(last)} of {STABLE_WINDOWS} windows"
    rates, latencies_ms = [window.rate_per_s for window in last], [window.latency_ms for window in last]
    for name, values in (("throughput", rates), ("latency", latencies_ms)):
        mean = fmean(values)
        spread = 100 * max(abs(value - mean) for value in values) / mean if mean else 100.0
        if spread > percentage or not mean:
            return f"{name} of the last {STABLE_WINDOWS} windows is off its mean by {spread:.0f} %"
    return None
