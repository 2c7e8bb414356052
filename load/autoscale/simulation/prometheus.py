"""What Prometheus would answer to the triggers' queries: samples every 15 s, means and rates over their window. Pure.

    counters and gauges of edge and replicas ─> scrape ─> samples of the last minute ─> metric of a trigger

A rate takes two samples. A replica that is gone counts until its last samples leave the window, as with Prometheus.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from load.autoscale.scaled_object import Query
from load.errors import BadRun

# s between two scrapes, as deploy/prometheus has it.
SCRAPE_S = 15.0
WINDOW = re.compile(r"\[(\d+)([sm])\]")
SECONDS = {"s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class Sample:
    """One scrape of everything.

    Attributes:
        time_s: when.
        in_flight: at the edge, all replicas.
        asked, refused: counters of requests, at the edge.
        engine_s: counters of the engines' busy seconds, by replica.
        cpu_share: gauge, what all replicas use of their processors, one for each: with work to do, all of it.
    """

    time_s: float
    in_flight: int
    asked: int
    refused: int
    engine_s: Mapping[int, float]
    cpu_share: float


@dataclass(slots=True)
class Prometheus:
    """The samples of the longest window.

    Attributes:
        samples: ascending.
        is_out: whether it answers nothing at the moment.
    """

    samples: deque[Sample] = field(default_factory=deque)
    is_out: bool = False

    def scrape(self, sample: Sample, window_s: float) -> None:
        """Take a sample, and forget what is older than the window; an outage takes none."""
        if not self.is_out:
            self.samples.append(sample)
        while self.samples and self.samples[0].time_s < sample.time_s - window_s:
            self.samples.popleft()

    def ask(self, query: Query, now_s: float) -> float | None:
        """Answer a trigger's question; None where there is nothing to answer with.

        Raises:
            BadRun: it is none that is simulated.
        """
        if query.name not in SIGNALS:
            raise BadRun(f"trigger {query.name} is not simulated: {', '.join(SIGNALS)} are")
        since_s = now_s - window_s(query)
        samples = [sample for sample in self.samples if sample.time_s > since_s]
        return SIGNALS[query.name](samples) if samples and not self.is_out else None


def window_s(query: Query) -> float:
    """Read the window of a query, s; one scrape where it has none."""
    found = [float(number) * SECONDS[unit] for number, unit in WINDOW.findall(query.query)]
    return max(found, default=SCRAPE_S)


def _rate(samples: list[Sample], counter: Callable[[Sample], float]) -> float:
    if len(samples) < 2:
        return 0.0
    return (counter(samples[-1]) - counter(samples[0])) / (samples[-1].time_s - samples[0].time_s)


def _in_flight(samples: list[Sample]) -> float:
    return sum(sample.in_flight for sample in samples) / len(samples)


def _busy(samples: list[Sample]) -> float:
    first: dict[int, tuple[float, float]] = {}
    last: dict[int, tuple[float, float]] = {}
    for sample in samples:
        for name, seconds in sample.engine_s.items():
            first.setdefault(name, (sample.time_s, seconds))
            last[name] = sample.time_s, seconds
    return 100 * sum(
        (last[name][1] - seconds) / (last[name][0] - time_s)
        for name, (time_s, seconds) in first.items()
        if last[name][0] > time_s
    )


def _demand(samples: list[Sample]) -> float:
    is_refusing = _rate(samples, lambda sample: sample.refused) > 0
    return _rate(samples, lambda sample: sample.asked) if is_refusing else 0.0


# Name of a trigger -> its metric. The first three are the rules'; the others are what not to scale by.
SIGNALS: dict[str, Callable[[list[Sample]], float]] = {
    "in-flight": _in_flight,
    "busy": _busy,
    "refusals": _demand,
    "cpu": lambda samples: sum(sample.cpu_share for sample in samples) / len(samples),
    "requests-total": lambda samples: float(samples[-1].asked),
}
