"""What the page at `/` shows of the traffic: rates, latencies, batch sizes, queue, refusals, for five minutes. Bounded.

scraped counters -> increments -> Traffic of each model: a point every scrape, for five minutes ─┐
fleet -> models, versions, workers, metadata ────────────────────────────────────────────────────┴> document
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from deploy.gateway.increments import Growth, Increments, S, Series, quantile
from deploy.gateway.state import Fleet, Model


@dataclass(frozen=True, slots=True)
class Tuning:
    """How much is remembered.

    Attributes:
        history_s: seconds of points; what five minutes of charts show.
        points: the most points of a model, whatever the scrapes' interval: 2 s make 150 of them.
        window_s: seconds whose observations a quantile and a mean are of; fewer would show a p99 of a handful.
    """

    history_s: float = 300.0
    points: int = 300
    window_s: float = 10.0


TUNING = Tuning()

# The label that names the model: the handlers' metrics have the first, TorchServe's own the second.
MODEL_LABELS = ("ModelName", "model_name")
# Types of errors that say that an item was refused, not that it failed.
REFUSED = frozenset({"Overloaded", "QueueFull", "QueueTimeout"})
# A request's way through a worker; their quantiles are added up where no histogram has the whole of it.
PARTS = ("handler_decode_seconds", "handler_wait_seconds", "handler_forward_seconds", "handler_encode_seconds")
REQUEST = "handler_request_seconds"
BATCH_SIZE = "handler_batch_size"
QUEUE_DEPTH, QUEUE_AGE = "handler_queue_depth", "handler_queue_age_seconds"
HISTOGRAMS = (*PARTS, REQUEST, BATCH_SIZE)
COUNTERS = frozenset(
    {
        "handler_items_total",
        "handler_item_errors_total",
        "handler_refusals_total",
        "handler_requests_total",
        "ts_inference_requests_total",
        "ts_queue_latency_microseconds",
        *(f"{name}_{part}" for name in (*HISTOGRAMS, QUEUE_DEPTH, QUEUE_AGE) for part in ("sum", "count")),
    }
)
BUCKETS = {f"{name}_bucket": name for name in HISTOGRAMS}
READ = COUNTERS | BUCKETS.keys()


@dataclass(frozen=True, slots=True)
class Point:
    """A model's traffic between one scrape and the next; quantiles and means are of the last ten seconds.

    Attributes:
        time_s: when it was scraped, by the clock of whoever did.
        requests_per_s: requests that its workers answered, or TorchServe took where workers do not count them.
        items_per_s: texts and images in them, failed ones included.
        p50_ms, p99_ms: of a request in the worker, or of its parts' sum, and what one waited in TorchServe's own queue
            on average; None where there was none.
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


COLUMNS = tuple(column.name for column in fields(Point))


@dataclass(slots=True)
class Interval:
    """What a model's counters grew by between two scrapes, all nodes together.

    Attributes:
        time_s: the later scrape.
        rates: counter -> growth a second.
        totals: counter -> growth.
        buckets: histogram -> upper end -> growth, cumulative.
        refused_items_per_s: of handler_item_errors_total, those of refused requests.
    """

    time_s: float
    refused_items_per_s: float = 0.0
    rates: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    totals: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))

    def add(self, series: Series, labels: Mapping[str, str], growth: float, seconds: float) -> None:
        """Count one node's growth of one series."""
        if series.name in BUCKETS:
            try:
                bound = float(labels.get("le", "+Inf"))
            except ValueError:
                return
            self.buckets[BUCKETS[series.name]][bound] += growth
        else:
            self.rates[series.name] += growth / seconds
            self.totals[series.name] += growth
            if labels.get("Type") in REFUSED:
                self.refused_items_per_s += growth / seconds


class Traffic:
    """One model's points and batch sizes of five minutes."""

    def __init__(self) -> None:
        self._window: deque[Interval] = deque()
        self._has_requests = False
        self.points: deque[Point] = deque(maxlen=TUNING.points)
        # (time_s, upper end -> micro-batches of that size), where there were any.
        self._sizes: deque[tuple[float, dict[float, float]]] = deque(maxlen=TUNING.points)

    def observe(self, interval: Interval) -> None:
        """Add a point, and drop what is too old."""
        now_s = interval.time_s
        self._has_requests |= "handler_requests_total" in interval.totals
        self._window.append(interval)
        while self._window[0].time_s <= now_s - TUNING.window_s:
            self._window.popleft()
        self.points.append(self._point(interval))
        if sizes := _apart(interval.buckets.get(BATCH_SIZE, {})):
            self._sizes.append((now_s, sizes))
        oldest_s = now_s - TUNING.history_s
        while self.points[0].time_s < oldest_s:
            self.points.popleft()
        while self._sizes and self._sizes[0][0] < oldest_s:
            self._sizes.popleft()

    def batch_sizes(self) -> list[list[float]]:
        """Give [most items, micro-batches] of each bucket that has any, ascending; None ends the open one."""
        sums: dict[float, float] = defaultdict(float)
        for _, sizes in self._sizes:
            for bound, count in sizes.items():
                sums[bound] += count
        return [[bound, sums[bound]] for bound in sorted(sums)]

    def is_measured_whole(self) -> bool:
        """Whether the latencies are of whole requests, and not sums of their parts'."""
        return any(REQUEST in interval.buckets for interval in self._window)

    def _point(self, interval: Interval) -> Point:
        rates = interval.rates
        errors = rates.get("handler_item_errors_total", 0.0)
        requests = "handler_requests_total" if self._has_requests else "ts_inference_requests_total"
        return Point(
            time_s=interval.time_s,
            requests_per_s=rates.get(requests, 0.0),
            items_per_s=rates.get("handler_items_total", 0.0) + errors,
            p50_ms=self._latency_ms(0.5),
            p99_ms=self._latency_ms(0.99),
            batch_items=self._mean(BATCH_SIZE),
            wait_ms=_sum(self._frontend_ms(), _milliseconds(self._mean("handler_wait_seconds"))),
            queue_items=self._mean(QUEUE_DEPTH),
            queue_age_ms=_milliseconds(self._mean(QUEUE_AGE)),
            refusals_per_s=rates.get("handler_refusals_total", 0.0),
            errors_per_s=max(0.0, errors - interval.refused_items_per_s),
        )

    def _latency_ms(self, share: float) -> float | None:
        if self.is_measured_whole():
            request = quantile(share, self._buckets(REQUEST))
            return None if request is None else _sum(self._frontend_ms(), _milliseconds(request))
        # Without the time in the model there was no request; the other parts may be missing.
        if quantile(share, self._buckets(PARTS[2])) is None:
            return None
        parts = (quantile(share, self._buckets(name)) for name in PARTS)
        return _sum(self._frontend_ms(), _milliseconds(sum(part or 0.0 for part in parts)))

    def _frontend_ms(self) -> float | None:
        """Milliseconds that a request waited in TorchServe's own queue, on average."""
        requests = self._total("ts_inference_requests_total")
        return self._total("ts_queue_latency_microseconds") / 1000 / requests if requests else None

    def _mean(self, histogram: str) -> float | None:
        count = self._total(f"{histogram}_count")
        return self._total(f"{histogram}_sum") / count if count else None

    def _total(self, name: str) -> float:
        return sum(interval.totals.get(name, 0.0) for interval in self._window)

    def _buckets(self, name: str) -> dict[float, float]:
        sums: dict[float, float] = defaultdict(float)
        for interval in self._window:
            for bound, growth in interval.buckets.get(name, {}).items():
                sums[bound] += growth
        return sums


class Summary:
    """Takes every scrape, and says what the page shows. One thread, or one event loop, calls it."""

    def __init__(self) -> None:
        self._increments = Increments(TUNING.history_s)
        self._traffic: dict[str, Traffic] = {}
        self._now_s = 0.0

    def observe(self, now_s: float, fleet: Fleet, scraped: Mapping[str, Mapping[S, float]]) -> None:
        """Take a scrape of every node that answered.

        Args:
            now_s: when, by a clock that does not run backwards.
            fleet: what is served; only its models are remembered.
            scraped: node -> series -> value, as Prometheus would read them.
        """
        intervals = {name: Interval(now_s) for name in fleet.models}
        is_measured = False
        for node, values in scraped.items():
            kept = {series: value for series, value in values.items() if series.name in READ}
            growth = self._increments.observe(now_s, node, kept)
            if growth is not None:
                is_measured = True
                _add(growth, intervals)
        self._increments.forget(now_s)
        self._traffic = {name: self._traffic.get(name) or Traffic() for name in fleet.models}
        self._now_s = now_s
        if is_measured:
            for name, interval in intervals.items():
                self._traffic[name].observe(interval)

    def document(self, fleet: Fleet, since_s: float = -math.inf) -> dict[str, Any]:
        """Say everything that the page shows, as JSON has it.

            {"time_s": 4711.0, "history_s": 300,
             "nodes": [{"name": "node-0", "is_draining": false}],
             "columns": ["time_s", "requests_per_s", ...],
             "models": [{
               "name": "resnet-152", "is_ready": true, "default": "1.0",
               "canary": {"version": "2.0", "percent": 5.0} or null,
               "versions": [{"version": "1.0", "is_ready": true, "metadata": {...} or null,
                             "replicas": [{"node": "node-0", "workers": 1, "ready_workers": 1, "batch_size": 8,
                                           "max_batch_delay_ms": 20, "is_default": true}]}],
               "latency_of": "requests" or "parts",
               "points": [[4709.0, 12.5, ...], ...],
               "batch_sizes": [[1, 20], [8, 3], [null, 1]]}]}

        `points` are rows of `columns`, oldest first; their meaning and units are those of `Point`, null where there was
        nothing to measure. `time_s` is the last scrape's, by a clock that is only good for differences. `batch_sizes`
        counts the micro-batches of five minutes by the most items of their bucket, null for the last, open one.
        `metadata` is the handler's own, as in `deploy.gateway.state.Version`.

        Args:
            fleet: what is served now.
            since_s: leave out the points up to this time, which the client has.
        """
        nodes = [{"name": name, "is_draining": name in fleet.draining} for name in sorted(fleet.nodes)]
        models = [self._model(fleet, fleet.models[name], since_s) for name in sorted(fleet.models)]
        return {
            "time_s": self._now_s,
            "history_s": TUNING.history_s,
            "nodes": nodes,
            "columns": COLUMNS,
            "models": models,
        }

    def _model(self, fleet: Fleet, model: Model, since_s: float) -> dict[str, Any]:
        traffic = self._traffic.get(model.name) or Traffic()
        canary = fleet.canaries.get(model.name)
        versions = [model.versions[version] for version in sorted(model.versions)]
        return {
            "name": model.name,
            "is_ready": bool(versions) and all(version.is_ready for version in versions),
            "default": model.default,
            "canary": {"version": canary.version, "percent": canary.percent} if canary else None,
            "versions": [
                {
                    "version": version.version,
                    "is_ready": version.is_ready,
                    "metadata": version.metadata,
                    "replicas": [
                        {
                            "node": node,
                            "workers": replica.workers,
                            "ready_workers": replica.ready_workers,
                            "batch_size": replica.batch_size,
                            "max_batch_delay_ms": replica.max_batch_delay_ms,
                            "is_default": replica.is_default,
                        }
                        for node, replica in sorted(version.replicas.items())
                    ],
                }
                for version in versions
            ],
            "latency_of": "requests" if traffic.is_measured_whole() else "parts",
            "points": [_row(point) for point in traffic.points if point.time_s > since_s],
            "batch_sizes": [[_finite(bound), count] for bound, count in traffic.batch_sizes()],
        }


def _add(growth: Growth, intervals: Mapping[str, Interval]) -> None:
    """Share a node's growth among the models that there are."""
    for series, value in growth.series.items():
        labels = dict(series.labels)
        model = next((labels[label] for label in MODEL_LABELS if label in labels), "")
        if model in intervals:
            intervals[model].add(series, labels, value, growth.seconds)


def _apart(buckets: Mapping[float, float]) -> dict[float, float]:
    """Take cumulative counts apart: upper end -> observations of that bucket alone, where there are any."""
    counts, below = {}, 0.0
    for bound in sorted(buckets):
        if buckets[bound] > below:
            counts[bound] = buckets[bound] - below
            below = buckets[bound]
    return counts


def _row(point: Point) -> Sequence[float | None]:
    values = (getattr(point, column) for column in COLUMNS)
    return [None if value is None else round(value, 3) for value in values]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _finite(bound: float) -> float | None:
    return None if math.isinf(bound) else bound
