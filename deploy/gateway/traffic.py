"""What the nodes' counters say of each model: Triton's statistics, and five minutes of points for the page's charts.

    metrics of every node, every two seconds -> what each counter grew by ─┬> sums    -> Triton's statistics
                                                                           └> samples -> points, batch sizes

A node's counters begin again at 0 when it restarts, and go with it when it is removed. What they had grown to stays in
the sums: Triton's tools stop at a counter that falls.
"""

import asyncio
import math
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import aiohttp

from deploy.gateway import metrics
from deploy.gateway.metrics import Counter
from deploy.gateway.state import Fleet

HISTORY_S = 300.0  # seconds of points that the page shows
POINTS = 300  # the most points of a model; a scrape every two seconds makes 150 of them
# Seconds whose observations a quantile and a mean are of; fewer would show a p99 of a handful.
WINDOW_S = 10.0
REQUESTS = "handler_requests_total"  # what handlers count
FRONTEND_REQUESTS = "ts_inference_requests_total"  # what TorchServe counts for those that are not of this project
ERRORS = "handler_item_errors_total"
# Types of errors that say that an item was refused, not that it failed.
REFUSALS = ("Overloaded", "QueueFull", "QueueTimeout")
PHASES = {"compute_input": "input", "compute_infer": "infer", "compute_output": "output"}
# What a point has, between one scrape and the next; latencies, means and waits are of the last ten seconds, and None
# where there was nothing.
COLUMNS = (
    "time_s",  # of the scrape, by a clock that is only good for differences
    "requests_per_s",  # answered by the workers, or taken by TorchServe where workers do not count them
    "items_per_s",  # texts and images in them, failed ones included
    "p50_ms",  # of a request in the worker, and what one waited in TorchServe's own queue on average
    "p99_ms",
    "batch_items",  # of a micro-batch, on average
    "wait_ms",  # of a request before the engine took it, in TorchServe's queue and the worker's, on average
    "queue_items",  # ready as a micro-batch began, on average; adaptive mode only
    "queue_age_ms",  # how long the oldest of them had been there, on average; adaptive mode only
    "refusals_per_s",  # requests that an adaptive worker refused
    "errors_per_s",  # items without a result, but for those of refused requests
)

# What counters grew by: the counter's name, and a bucket's upper end or an error's type, "" for neither.
Grown = Mapping[tuple[str, str], float]


class Sample(NamedTuple):
    """A model between one scrape and the next: when it was scraped, what its counters grew by, a row of COLUMNS."""

    time_s: float
    grown: Grown
    point: list[float | None]


class Traffic:
    """Sums and samples of the counters of all nodes. One event loop calls it."""

    def __init__(self) -> None:
        """Begin without any counter."""
        self.texts: Mapping[str, str] = {}
        self.time_s = 0.0
        # Node -> counter -> its value when it was seen last.
        self._last: dict[str, dict[Counter, float]] = {}
        self._sums: dict[Counter, float] = defaultdict(float)
        # (Model, version) -> when its requests were seen to grow last, ms since 1970.
        self._last_ms: dict[tuple[str, str], int] = {}
        self._samples: dict[str, deque[Sample]] = {}
        self._scraping = asyncio.Lock()

    async def scrape(self, session: aiohttp.ClientSession, fleet: Fleet, age_s: float = 0.0) -> None:
        """Read the metrics of all nodes, unless that was done within the last `age_s`."""
        async with self._scraping:
            if time.monotonic() - self.time_s >= age_s:
                self.texts = await metrics.scrape(session, fleet.nodes.values())
                scraped = {node: metrics.counters(text) for node, text in self.texts.items()}
                self.add(scraped, fleet, time.monotonic())

    def add(self, scraped: Mapping[str, Mapping[Counter, float]], fleet: Fleet, now_s: float) -> None:
        """Add what the counters of the nodes that answered have grown by; of what is gone only the sums are kept."""
        self._last = {node: last for node, last in self._last.items() if node in fleet.nodes}
        # A point is what nodes counted that were scraped before.
        known = self._last.keys() & scraped.keys()
        grown: dict[str, dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
        for node, values in scraped.items():
            last = self._last.setdefault(node, {})
            for counter, value in values.items():
                before = last.get(counter, 0.0)
                # One that is less than it was has begun anew.
                growth = value - before if value >= before else value
                last[counter] = value
                self._sums[counter] += growth
                if node in known:
                    grown[counter.model][counter.name, counter.end or counter.error] += growth
                if growth and counter.name == REQUESTS:
                    self._last_ms[counter.model, counter.version] = time.time_ns() // 1_000_000
        self._samples = {name: self._samples.get(name, deque(maxlen=POINTS)) for name in fleet.models}
        for name, samples in self._samples.items() if known and now_s > self.time_s else ():
            own = grown[name]
            window = _sum([*(each.grown for each in samples if each.time_s > now_s - WINDOW_S), own])
            point = {"time_s": now_s, **_point(own, now_s - self.time_s, window)}
            row = [None if (figure := point[column]) is None else round(figure, 3) for column in COLUMNS]
            samples.append(Sample(now_s, own, row))
            while samples[0].time_s < now_s - HISTORY_S:
                samples.popleft()
        self.time_s = now_s

    def points(self, model: str, since_s: float) -> list[list[float | None]]:
        """Return a model's points after `since_s`, oldest first: rows of COLUMNS."""
        return [each.point for each in self._samples.get(model, ()) if each.time_s > since_s]

    def batch_sizes(self, model: str) -> list[list[float | None]]:
        """Count a model's micro-batches of five minutes by the most items of their bucket, None for the open one."""
        found: list[list[float | None]] = []
        below = 0.0
        sums = _sum(each.grown for each in self._samples.get(model, ()))
        for bound, count in sorted(_buckets(sums, "handler_batch_size").items()):
            if count > below:
                found.append([None if math.isinf(bound) else bound, count - below])
                below = count
        return found

    def triton(self, model: str, version: str) -> dict[str, Any]:
        """Return Triton's statistics of a version, but for its name and version; times in ns, all are whole numbers."""
        of = {key: total for key, total in self._sums.items() if (key.model, key.version) == (model, version)}

        def total(name: str, **labels: str) -> float:
            """Sum a counter over the labels that are not named."""
            wanted = {"name": name, **labels}.items()
            return sum(value for key, value in of.items() if wanted <= key._asdict().items())

        def duration(count: float, seconds: float) -> dict[str, int]:
            return {"count": round(count), "ns": round(seconds * 1e9)}

        def computes(**labels: str) -> dict[str, dict[str, int]]:
            count = total("handler_executions_total", **labels)
            return {
                name: duration(count, total("handler_execution_seconds_total", phase=phase, **labels))
                for name, phase in PHASES.items()
            }

        outcomes = {
            name: duration(total(REQUESTS, outcome=name), total("handler_request_seconds_total", outcome=name))
            for name in ("success", "fail")
        }
        sizes = {key.size for key in of if key.name == "handler_executions_total" and key.size.isdecimal()}
        return {
            "last_inference": self._last_ms.get((model, version), 0),
            "inference_count": round(total("handler_items_total")),
            "execution_count": round(total("handler_executions_total")),
            "inference_stats": {
                **outcomes,
                "queue": duration(total("handler_wait_seconds_count"), total("handler_queue_seconds_total")),
                **computes(),
                "cache_hit": duration(0, 0),
                "cache_miss": duration(0, 0),
            },
            "batch_stats": [{"batch_size": int(size), **computes(size=size)} for size in sorted(sizes, key=int)],
            "memory_usage": [],
            "response_stats": {},
        }


def _sum(parts: Iterable[Grown]) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for part in parts:
        for key, value in part.items():
            sums[key] += value
    return sums


def _point(grown: Grown, seconds: float, window: Grown) -> dict[str, float | None]:
    """Return the columns but for the time, of what grew in the last seconds and in the whole window."""

    def per_s(name: str, but: tuple[str, ...] = ()) -> float:
        return sum(value for (each, label), value in grown.items() if each == name and label not in but) / seconds

    def mean(histogram: str, scale: float = 1.0) -> float | None:
        count = window.get((f"{histogram}_count", ""))
        return scale * window.get((f"{histogram}_sum", ""), 0.0) / count if count else None

    requests = window.get((FRONTEND_REQUESTS, ""))
    frontend_ms = window.get(("ts_queue_latency_microseconds", ""), 0.0) / 1000 / requests if requests else None
    waits = [each for each in (frontend_ms, mean("handler_wait_seconds", 1000)) if each is not None]
    latencies_s = _buckets(window, "handler_request_seconds")
    p50, p99 = (
        None if (latency_s := quantile(share, latencies_s)) is None else latency_s * 1000 + (frontend_ms or 0.0)
        for share in (0.5, 0.99)
    )
    return {
        "requests_per_s": per_s(REQUESTS if (REQUESTS, "") in grown else FRONTEND_REQUESTS),
        "items_per_s": per_s("handler_items_total") + per_s(ERRORS),
        "p50_ms": p50,
        "p99_ms": p99,
        "batch_items": mean("handler_batch_size"),
        "wait_ms": sum(waits) if waits else None,
        "queue_items": mean("handler_queue_depth"),
        "queue_age_ms": mean("handler_queue_age_seconds", 1000),
        "refusals_per_s": per_s("handler_refusals_total"),
        "errors_per_s": per_s(ERRORS, but=REFUSALS),
    }


def _buckets(sums: Grown, histogram: str) -> dict[float, float]:
    """Return a histogram's buckets: upper end -> observations up to it."""
    return {float(end): value for (name, end), value in sums.items() if name == f"{histogram}_bucket"}


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Estimate a quantile of cumulative buckets as Prometheus' histogram_quantile does; None without observations."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    # Versions with other latency targets have other buckets: their sum may not rise.
    ends, counts = [0.0, *bounds[:-1]], [0.0, *accumulate((buckets[bound] for bound in bounds), max)]
    ends.append(ends[-1])
    rank = share * counts[-1]
    index = bisect_left(counts, rank, lo=1)
    part = (rank - counts[index - 1]) / (counts[index] - counts[index - 1])
    return ends[index - 1] + (ends[index] - ends[index - 1]) * part
