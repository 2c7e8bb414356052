"""Finds what to register a model with, for a latency that is wanted (classic batching).

    batch sizes 1, 2, 4, ... -> saturated -> time of a batch -> Curve: a * n + b -> Advice -> highest rate that holds

A registered model's batch_size cannot be changed, so each candidate is registered beside it as MODEL-tune, measured and
unregistered; the model itself stays as it is. The rules, for a server that forms a batch of what has queued while the
last one ran:
    batch_size         the largest whose batch takes half of the threshold: a request that just missed a batch waits for
                       that one, and then for its own
    max_batch_delay    1 ms: under load the queue fills batches by itself, and without load a delay is only a delay
    job_queue_size     what can queue and still be answered in time; the rest had better be answered 503 at once
    workers            one, unless more of them answer more: they share the processor
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import linear_regression, median

from load.errors import LoadError
from load.generate import Attack, ClosedLoop, OpenLoop
from load.measure import measure, now
from load.results import Summary
from load.run_file import Run
from load.schedules import Poisson
from load.search import Found, fair, highest, is_met
from load.served import Served
from torchserve_client.management import ManagementError

SCHEMA = "load-tune/1"
# max_batch_delay of every candidate: the least that TorchServe takes (the rule above).
MAX_BATCH_DELAY_MS = 1
# Seconds for a candidate's workers to become ready: more than twice TorchServe's default of startupTimeout, 120 s.
READY_TIMEOUT_S = 300.0
# Clients for each request of a batch: as many again queue while a batch runs, so that the next one is full.
CLIENTS_PER_BATCH = 2
# Throughput that another worker must bring, as a ratio: it takes its memory again, and runs differ by some percent.
WORTHWHILE = 1.1
# Steps of the search for the rate, which goes from a tenth of the saturated throughput to all of it.
RATE_STEPS = 20


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size: the mean number of items of its batches, and the mean time from one to the next.

    `forward_ms` is the part of it in the engine; None where the answers do not say.
    """

    batch_size: float
    batch_ms: float
    forward_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """The time of a batch of n items: per_item_ms * n + per_batch_ms."""

    per_item_ms: float
    per_batch_ms: float

    @classmethod
    def fit(cls, points: list[Point]) -> "Curve":
        """Fit least squares; a fit of one size, or in which an empty batch takes less than nothing, goes through 0."""
        sizes, times_ms = [point.batch_size for point in points], [point.batch_ms for point in points]
        if len(set(sizes)) > 1:
            slope, intercept = linear_regression(sizes, times_ms)
            if intercept > 0:
                return cls(slope, intercept)
        return cls(linear_regression(sizes, times_ms, proportional=True).slope, 0.0)

    def batch_ms(self, size: float) -> float:
        """Return the ms that a batch of `size` items takes."""
        return self.per_item_ms * size + self.per_batch_ms


@dataclass(frozen=True, slots=True)
class Advice:
    """The parameters to register a model with; see the rules above."""

    batch_size: int
    max_batch_delay_ms: int
    job_queue_size: int


@dataclass(frozen=True, slots=True)
class Held:
    """The highest Poisson rate that kept the latency, in requests per second, and the latency at that rate."""

    rate_per_s: float
    mean_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result, as `--out` stores it; README.md beside this file has the fields."""

    model: str
    created_at: str
    latency_threshold_ms: float
    percentile: float
    points: list[Point]
    curve: Curve
    advice: Advice
    workers: int
    held: Held | None
    ready_s: float
    schema: str = SCHEMA


def advise(curve: Curve, latency_threshold_ms: float, max_batch_size: int) -> Advice:
    """Apply the rules above, with batches of `max_batch_size` at most; LoadError where one item takes too long."""
    single_ms = curve.batch_ms(1)
    if single_ms > latency_threshold_ms:
        raise LoadError(
            f"a single request takes {single_ms:.1f} ms: no setting answers within {latency_threshold_ms:g} ms"
        )
    fitting = (n for n in range(max_batch_size, 0, -1) if 2 * curve.batch_ms(n) <= latency_threshold_ms)
    size = next(fitting, 1)
    queued_batches = latency_threshold_ms / curve.batch_ms(size) - 1
    return Advice(size, MAX_BATCH_DELAY_MS, max(size, math.floor(queued_batches * size)))


@dataclass(frozen=True, slots=True)
class Tuner:
    """Measures variants of a model.

    Attributes:
        served: the model, which is registered.
        attack: what every measurement has in common; it has a latency threshold.
        archive: file name in the model store that variants are registered from.
        percentile: share of all requests, in %, that must keep the threshold.
        ready_s: seconds from registering to READY of each variant so far.
    """

    served: Served
    attack: Attack
    archive: str
    percentile: float
    ready_s: list[float] = field(default_factory=list)

    def tune(self, max_batch_size: int, max_workers: int) -> Tuned:
        """Measure, print what was found on the way, and return it.

        Raises:
            LoadError: a variant cannot be registered or measured, or a single request takes too long.
        """
        threshold_ms = self.attack.latency_threshold_ms or math.inf
        points: list[Point] = []
        for size in [2**power for power in range(max_batch_size.bit_length())]:
            points.append(self._point(size))
            print(f"batches of {points[-1].batch_size:5.1f}: {points[-1].batch_ms:8.1f} ms")
            if points[-1].batch_ms > threshold_ms:
                break
        curve = Curve.fit(points)
        print(f"time of a batch of n: {curve.per_item_ms:.2f} ms * n + {curve.per_batch_ms:.2f} ms")
        advice = advise(curve, threshold_ms, max_batch_size)
        workers, found = self._best(advice.batch_size, max_workers)
        held = None
        if found.load is not None:
            latency_ms = found.measured.latencies.statistics_ms()
            held = Held(found.load.value, latency_ms["mean"], latency_ms["p99"])
        model, ready_s = self.served.model, round(median(self.ready_s), 1)
        return Tuned(model, now(), threshold_ms, self.percentile, points, curve, advice, workers, held, ready_s)

    def _point(self, size: int) -> Point:
        """Measure the time of full batches."""
        with self._variant(size) as (attack, run):
            summary = measure(replace(attack, load=ClosedLoop(CLIENTS_PER_BATCH * size)), run)
        if not summary.completed:
            raise LoadError(f"batch_size {size}: no request was answered 200; statuses {summary.failures}")
        mean_size = summary.mean_batch_size or size
        return Point(mean_size, 1e3 * mean_size / summary.throughput_per_s, summary.server_ms.get("forward"))

    def _best(self, batch_size: int, max_workers: int) -> tuple[int, Found[OpenLoop, Summary]]:
        """Find the number of workers that holds the highest rate, and that rate, verified by a run of its own."""
        best: tuple[int, Found[OpenLoop, Summary]] | None = None
        saturated_per_s = 0.0
        for workers in range(1, max_workers + 1):
            with self._variant(batch_size, workers) as (attack, run):
                load = ClosedLoop(CLIENTS_PER_BATCH * batch_size * workers)
                summary = measure(replace(attack, load=load), run)
                print(f"{workers} worker(s): {summary.throughput_per_s:.1f}/s when saturated")
                if best and summary.throughput_per_s < WORTHWHILE * saturated_per_s:
                    break
                saturated_per_s = summary.throughput_per_s
                found = self._search(attack, run, saturated_per_s)
            if best is None or _rate(found) > WORTHWHILE * _rate(best[1]):
                best = workers, found
        assert best is not None  # noqa: S101 (max_workers is at least 1)
        return best

    def _search(self, attack: Attack, run: Run, saturated_per_s: float) -> Found[OpenLoop, Summary]:
        steps = range(2, RATE_STEPS + 1)
        rates = [OpenLoop(Poisson(saturated_per_s * step / RATE_STEPS)) for step in steps]
        measured = fair(lambda load: measure(replace(attack, load=load), run), self.percentile)
        return highest(rates, measured, lambda summary: is_met(summary, self.percentile))

    @contextmanager
    def _variant(self, batch_size: int, workers: int = 1) -> Iterator[tuple[Attack, Run]]:
        """Register the model under another name until the end of the block."""
        served = replace(self.served, model=f"{self.served.model}-tune", version=None)
        registered_s = time.monotonic()
        try:
            served.management.register(
                self.archive,
                batch_size=batch_size,
                max_batch_delay_ms=MAX_BATCH_DELAY_MS,
                initial_workers=workers,
                model_name=served.model,
            )
        except ManagementError as error:
            raise LoadError(f"cannot register {self.archive} as {served.model}: {error}") from error
        try:
            served.management.wait_ready(served.model, READY_TIMEOUT_S)
            self.ready_s.append(time.monotonic() - registered_s)
            served.check(self.attack.inputs.items[0])
            label = f"batch_size {batch_size}, {workers} worker(s)"
            yield replace(self.attack, target=served.target), Run(label, now(), served.model, "", {}, {}, [])
        except ManagementError as error:
            raise LoadError(f"{served.model}, batch_size {batch_size}: {error}") from error
        finally:
            served.management.unregister(served.model)


def _rate(found: Found[OpenLoop, Summary]) -> float:
    return 0.0 if found.load is None else found.load.value
