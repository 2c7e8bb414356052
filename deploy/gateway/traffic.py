"""Triton's statistics, and five minutes of points for the page's charts, from the nodes' counters.

    metrics of every node, every two seconds -> growth of each counter ─┬> sums    -> Triton's statistics
                                                                        └> samples -> points, batch sizes

A node's counters restart at 0 with the node, and disappear with it. The sums keep their growth: Triton's tools stop if
a counter falls.
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
POINTS = 300  # maximum points of a model; a scrape every two seconds makes 150
WINDOW_S = 10.0  # seconds of observations for a quantile or mean; fewer would base a p99 on a handful
REQUESTS = "handler_requests_total"  # counted by the handlers
FRONTEND_REQUESTS = "ts_inference_requests_total"  # counted by TorchServe, for handlers of other projects
ERRORS = "handler_item_errors_total"
REFUSALS = ("Overloaded", "QueueFull", "QueueTimeout")  # error types of refused items, which did not fail
PHASES = {"compute_input": "input", "compute_infer": "infer", "compute_output": "output"}
# A point covers the time since the previous scrape; latencies, means and waits cover ten seconds, and are None without
# observations.
COLUMNS = (
    "time_s",  # time of the scrape, on the monotonic clock
    "requests_per_s",  # answered by the workers, or accepted by TorchServe if the workers do not count
    "items_per_s",  # texts and images, including failed ones
    "p50_ms",  # time of a request in the worker, plus the mean wait in TorchServe's queue
    "p99_ms",
    "batch_items",  # mean items of a micro-batch
    "wait_ms",  # mean wait of a request for the engine, in TorchServe's queue and the worker's
    "queue_items",  # mean items that wait when a micro-batch begins; adaptive mode only
    "queue_age_ms",  # mean age of the oldest of these items; adaptive mode only
    "refusals_per_s",  # requests that an adaptive worker refused
    "errors_per_s",  # items without a result, except those of refused requests
)

Growth = Mapping[tuple[str, str], float]  # (Counter, upper end of a bucket or error type or "") -> its growth


class Sample(NamedTuple):
    time_s: float
    growth: Growth
    point: list[float | None]


class Traffic:
    """Sums and samples of the counters of all nodes. One event loop calls it."""

    def __init__(self) -> None:
        self.texts: Mapping[str, str] = {}
        self.time_s = 0.0
        self._last: dict[str, dict[Counter, float]] = {}  # node -> counter -> its last value
        self._sums: dict[Counter, float] = defaultdict(float)
        # (Model, version) -> time of the last scrape with new requests, ms since 1970.
        self._last_ms: dict[tuple[str, str], int] = {}
        self._samples: dict[str, deque[Sample]] = {}
        self._scraping = asyncio.Lock()

    async def scrape(self, session: aiohttp.ClientSession, fleet: Fleet, age_s: float = 0.0) -> None:
        """Read the metrics of all nodes, unless the last scrape is younger than `age_s`."""
        async with self._scraping:
            if time.monotonic() - self.time_s >= age_s:
                self.texts = await metrics.scrape(session, fleet.nodes.values())
                scraped = {node: metrics.read_counters(text) for node, text in self.texts.items()}
                self.add(scraped, fleet, time.monotonic())

    def add(self, scraped: Mapping[str, Mapping[Counter, float]], fleet: Fleet, now_s: float) -> None:
        """Add the growth of the counters of the scraped nodes; of removed nodes and models only the sums are kept."""
        self._last = {node: last for node, last in self._last.items() if node in fleet.nodes}
        known = self._last.keys() & scraped.keys()  # points contain the growth on nodes that were scraped before
        growth: dict[str, dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
        for node, values in scraped.items():
            last = self._last.setdefault(node, {})
            for counter, value in values.items():
                before = last.get(counter, 0.0)
                increase = value - before if value >= before else value  # a counter that fell has restarted at 0
                last[counter] = value
                self._sums[counter] += increase
                if node in known:
                    growth[counter.model][counter.name, counter.end or counter.error] += increase
                if increase and counter.name == REQUESTS:
                    self._last_ms[counter.model, counter.version] = time.time_ns() // 1_000_000
        self._samples = {name: self._samples.get(name, deque(maxlen=POINTS)) for name in fleet.models}
        for name, samples in self._samples.items() if known and now_s > self.time_s else ():
            own = growth[name]
            window = _sum([*(each.growth for each in samples if each.time_s > now_s - WINDOW_S), own])
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
        """Count a model's micro-batches of five minutes by the upper end of their bucket, None for the open one."""
        found: list[list[float | None]] = []
        below = 0.0
        sums = _sum(each.growth for each in self._samples.get(model, ()))
        for bound, count in sorted(_buckets(sums, "handler_batch_size").items()):
            if count > below:
                found.append([None if math.isinf(bound) else bound, count - below])
                below = count
        return found

    def triton(self, model: str, version: str) -> dict[str, Any]:
        """Return Triton's statistics of a version without its name and version; times in ns, all integers."""
        sums = {key: total for key, total in self._sums.items() if (key.model, key.version) == (model, version)}

        def total(name: str, **labels: str) -> float:
            wanted = {"name": name, **labels}.items()
            return sum(value for key, value in sums.items() if wanted <= key._asdict().items())

        def duration(count: float, seconds: float) -> dict[str, int]:
            return {"count": round(count), "ns": round(seconds * 1e9)}

        def computes(**labels: str) -> dict[str, dict[str, int]]:
            count = total("handler_executions_total", **labels)
            return {
                name: duration(count, total("handler_execution_seconds_total", phase=phase, **labels))
                for name, phase in PHASES.items()
            }

        outcomes = {
            name: duration(total(REQUESTS, outcome=name), total("handler_outcome_seconds_total", outcome=name))
            for name in ("success", "fail")
        }
        sizes = {key.size for key in sums if key.name == "handler_executions_total" and key.size.isdecimal()}
        return {
            "last_inference": self._last_ms.get((model, version), 0),
            "inference_count": round(total("handler_items_total")),
            "execution_count": round(total("handler_executions_total")),
            "inference_stats": {
                **outcomes,
                "queue": duration(
                    total("handler_engine_wait_seconds_count"), total("handler_worker_wait_seconds_total")
                ),
                **computes(),
                "cache_hit": duration(0, 0),
                "cache_miss": duration(0, 0),
            },
            "batch_stats": [{"batch_size": int(size), **computes(size=size)} for size in sorted(sizes, key=int)],
            "memory_usage": [],
            "response_stats": {},
        }


def _sum(parts: Iterable[Growth]) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for part in parts:
        for key, value in part.items():
            sums[key] += value
    return sums


def _point(growth: Growth, seconds: float, window: Growth) -> dict[str, float | None]:
    """Return the columns without the time, from the growth in `seconds` and in the whole window."""

    def per_s(name: str, but: tuple[str, ...] = ()) -> float:
        return sum(value for (each, label), value in growth.items() if each == name and label not in but) / seconds

    def mean(histogram: str, scale: float = 1.0) -> float | None:
        count = window.get((f"{histogram}_count", ""))
        return scale * window.get((f"{histogram}_sum", ""), 0.0) / count if count else None

    requests = window.get((FRONTEND_REQUESTS, ""))
    frontend_ms = window.get(("ts_queue_latency_microseconds", ""), 0.0) / 1000 / requests if requests else None
    waits = [each for each in (frontend_ms, mean("handler_engine_wait_seconds", 1000)) if each is not None]
    latencies_s = _buckets(window, "handler_request_seconds")
    p50, p99 = (
        None if (latency_s := quantile(share, latencies_s)) is None else latency_s * 1000 + (frontend_ms or 0.0)
        for share in (0.5, 0.99)
    )
    return {
        "requests_per_s": per_s(REQUESTS if (REQUESTS, "") in growth else FRONTEND_REQUESTS),
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


def _buckets(sums: Growth, histogram: str) -> dict[float, float]:
    return {float(end): value for (name, end), value in sums.items() if name == f"{histogram}_bucket"}


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Estimate a quantile of cumulative buckets as Prometheus' histogram_quantile; None without observations."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    # Versions with different latency targets have different buckets, so the sums may fall.
    ends, counts = [0.0, *bounds[:-1]], [0.0, *accumulate((buckets[bound] for bound in bounds), max)]
    ends.append(ends[-1])
    rank = share * counts[-1]
    index = bisect_left(counts, rank, lo=1)
    part = (rank - counts[index - 1]) / (counts[index] - counts[index - 1])
    return ends[index - 1] + (ends[index] - ends[index - 1]) * part
