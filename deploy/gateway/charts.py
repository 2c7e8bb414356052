"""What the page at `/` shows of the traffic: rates, latencies, batch sizes, queue, refusals, for five minutes. Bounded.

what counters grew by (metrics) -> a Sample of each model every scrape ────┐
fleet -> models, versions, workers, metadata ──────────────────────────────┴> summary
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from deploy.gateway import metrics
from deploy.gateway.metrics import Counter
from deploy.gateway.state import Fleet, Model

# Seconds of points that the page shows, and the most points of a model; a scrape every two seconds makes 150 of them.
HISTORY_S, POINTS = 300.0, 300
# Seconds whose observations a quantile and a mean are of; fewer would show a p99 of a handful.
WINDOW_S = 10.0
# What the page shows of a replica.
SHOWN = ("workers", "ready_workers", "batch_size", "max_batch_delay_ms", "is_default")
# Types of errors that say that an item was refused, not that it failed; and where a sample has their number.
REFUSALS, REFUSED = ("Overloaded", "QueueFull", "QueueTimeout"), (metrics.ITEM_ERRORS, "refused")


class Sample(NamedTuple):
    """What a model's counters grew by between one scrape and the next.

    Attributes:
        time_s: when it was scraped, by a clock that is only good for differences.
        seconds: since the scrape before.
        grown: by the counter's name and a bucket's upper end, "" for none; REFUSED has the item errors that refuse.
    """

    time_s: float
    seconds: float
    grown: Mapping[tuple[str, str], float]


class Point(NamedTuple):
    """A model's traffic between one scrape and the next; quantiles and means are of the last ten seconds.

    Attributes:
        time_s: when it was scraped, by a clock that is only good for differences.
        requests_per_s: requests that its workers answered, or TorchServe took where workers do not count them.
        items_per_s: texts and images in them, failed ones included.
        p50_ms, p99_ms: of a request in the worker, and what one waited in TorchServe's own queue on average; None where
            there was none.
        batch_items: items of a micro-batch, on average; None where there was none.
        wait_ms: of a request before the engine took it, in TorchServe's queue and the worker's, on average.
        queue_items: items that were ready as a micro-batch began, on average; adaptive mode only.
        queue_age_ms: how long the oldest of them had been there, on average; adaptive mode only.
        refusals_per_s: requests that an adaptive worker refused.
        errors_per_s: items without a result, but for those of refused requests.
    """

    time_s: float
    requests_per_s: float
    items_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    batch_items: float | None
    wait_ms: float | None
    queue_items: float | None
    queue_age_ms: float | None
    refusals_per_s: float
    errors_per_s: float


class Charts:
    """Five minutes of each model's traffic. One event loop calls it."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._samples: dict[str, deque[Sample]] = {}
        self._points: dict[str, deque[list[float | None]]] = {}
        self._now_s = 0.0

    def add(self, now_s: float, models: Iterable[str], grown: Mapping[Counter, float] | None) -> None:
        """Add a sample to each of these models, and forget all others.

        Args:
            now_s: the time of the scrape, by a clock that does not run backwards.
            models: their names.
            grown: what the counters grew by since the scrape before; None where counting only begins.
        """
        self._samples = {name: self._samples.get(name, deque(maxlen=POINTS)) for name in models}
        self._points = {name: self._points.get(name, deque(maxlen=POINTS)) for name in self._samples}
        sums: dict[str, dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
        for counter, value in (grown or {}).items():
            sums[counter.model][counter.name, counter.end] += value
            if counter.error in REFUSALS:
                sums[counter.model][REFUSED] += value
        if grown is not None and now_s > self._now_s:
            for name, samples in self._samples.items():
                samples.append(Sample(now_s, now_s - self._now_s, sums[name]))
                self._points[name].append([None if each is None else round(each, 3) for each in _point(samples)])
                while samples[0].time_s < now_s - HISTORY_S:
                    samples.popleft()
                    self._points[name].popleft()
        self._now_s = now_s

    def summary(self, fleet: Fleet, since_s: float = -math.inf) -> dict[str, Any]:
        """Return everything that the page shows, as JSON has it.

            {"time_s": 4711.0, "history_s": 300,
             "nodes": [{"name": "node-0", "is_draining": false}],
             "columns": ["time_s", "requests_per_s", ...],
             "models": [{
               "name": "resnet-152", "is_ready": true, "default": "1.0",
               "canary": {"version": "2.0", "percent": 5.0} or null,
               "versions": [{"version": "1.0", "is_ready": true, "metadata": {...} or null,
                             "replicas": [{"node": "node-0", "workers": 1, "ready_workers": 1, "batch_size": 8,
                                           "max_batch_delay_ms": 20, "is_default": true}]}],
               "points": [[4709.0, 12.5, ...], ...],
               "batch_sizes": [[1, 20], [8, 3], [null, 1]]}]}

        `points` are rows of `columns`, oldest first; their meaning and units are those of `Point`. `time_s` is the last
        scrape's. `batch_sizes` counts the micro-batches of five minutes by the most items of their bucket, null for the
        last, open one. `metadata` is the handler's own, as in `deploy.gateway.state.Version`. Points up to `since_s`
        are left out.
        """
        return {
            "time_s": self._now_s,
            "history_s": HISTORY_S,
            "nodes": [{"name": name, "is_draining": name in fleet.draining} for name in sorted(fleet.nodes)],
            "columns": Point._fields,
            "models": [self._model(fleet, model, since_s) for _, model in sorted(fleet.models.items())],
        }

    def _model(self, fleet: Fleet, model: Model, since_s: float) -> dict[str, Any]:
        canary = fleet.canaries.get(model.name)
        return {
            "name": model.name,
            "is_ready": bool(model.versions) and all(version.is_ready for version in model.versions.values()),
            "default": model.default,
            "canary": {"version": canary.version, "percent": canary.percent} if canary else None,
            "versions": [
                {
                    "version": version.version,
                    "is_ready": version.is_ready,
                    "metadata": version.metadata,
                    "replicas": [
                        {"node": node, **{name: getattr(each, name) for name in SHOWN}}
                        for node, each in sorted(version.replicas.items())
                    ],
                }
                for _, version in sorted(model.versions.items())
            ],
            "points": [point for point in self._points.get(model.name, ()) if (point[0] or 0.0) > since_s],
            "batch_sizes": _batch_sizes(_sum(self._samples.get(model.name, ()))),
        }


def _sum(samples: Iterable[Sample]) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for sample in samples:
        for key, value in sample.grown.items():
            sums[key] += value
    return sums


def _point(samples: Sequence[Sample]) -> Point:
    """Return the point of the last sample."""
    sample = samples[-1]
    window = _sum(each for each in samples if each.time_s > sample.time_s - WINDOW_S)

    def per_s(name: str, end: str = "") -> float:
        return sample.grown.get((name, end), 0.0) / sample.seconds

    def mean(histogram: str, scale: float = 1.0) -> float | None:
        count = window[f"{histogram}_count", ""]
        return scale * window[f"{histogram}_sum", ""] / count if count else None

    requests = window[metrics.FRONTEND_REQUESTS, ""]
    frontend_ms = window[metrics.FRONTEND_WAIT_US, ""] / 1000 / requests if requests else None

    def latency_ms(share: float) -> float | None:
        request_s = quantile(share, _buckets(window, metrics.REQUEST))
        return None if request_s is None else request_s * 1000 + (frontend_ms or 0.0)

    waits = [each for each in (frontend_ms, mean(metrics.WAIT, 1000)) if each is not None]
    # A handler that is not of this project counts nothing: TorchServe does.
    is_counted = (metrics.REQUESTS, "") in sample.grown
    return Point(
        time_s=sample.time_s,
        requests_per_s=per_s(metrics.REQUESTS if is_counted else metrics.FRONTEND_REQUESTS),
        items_per_s=per_s(metrics.ITEMS) + per_s(metrics.ITEM_ERRORS),
        p50_ms=latency_ms(0.5),
        p99_ms=latency_ms(0.99),
        batch_items=mean(metrics.BATCH_SIZE),
        wait_ms=sum(waits) if waits else None,
        queue_items=mean(metrics.QUEUE_DEPTH),
        queue_age_ms=mean(metrics.QUEUE_AGE, 1000),
        refusals_per_s=per_s(metrics.REFUSALS),
        errors_per_s=max(0.0, per_s(metrics.ITEM_ERRORS) - per_s(*REFUSED)),
    )


def _batch_sizes(sums: Mapping[tuple[str, str], float]) -> list[list[float | None]]:
    """Return [most items, micro-batches] of each bucket that has any, ascending; None ends the open one."""
    found: list[list[float | None]] = []
    below = 0.0
    for bound, count in sorted(_buckets(sums, metrics.BATCH_SIZE).items()):
        if count > below:
            found.append([None if math.isinf(bound) else bound, count - below])
            below = count
    return found


def _buckets(sums: Mapping[tuple[str, str], float], histogram: str) -> dict[float, float]:
    """Return a histogram's buckets: upper end -> observations up to it."""
    return {float(end): value for (name, end), value in sums.items() if name == f"{histogram}_bucket"}


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Estimate a quantile as Prometheus' histogram_quantile does: linear within a bucket.

    Args:
        share: 0..1, 0.99 for p99.
        buckets: upper end -> observations up to it, cumulative; the last is infinity.

    Returns:
        The value; the highest finite bound where it lies beyond; None without observations.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = share * buckets[bounds[-1]]
    below, below_count = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank and count > below_count:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (rank - below_count) / (count - below_count)
        below, below_count = bound if math.isfinite(bound) else below, max(count, below_count)
    return below
