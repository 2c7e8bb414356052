"""What to register a model with, for a latency that is wanted.

    batch sizes 1, 2, 4, ... -> saturated -> time of a batch -> Curve: a*n + b -> Advice -> highest rate that holds

A registered model's batch_size cannot be changed, so each candidate is registered beside it, under a name of its own
(MODEL-tune), measured and unregistered; the model itself stays as it is, idle meanwhile, and so does its memory.

The rules, for a server that forms a batch of what has queued while the last one ran:
    batch_size         the largest whose batch takes half the threshold: a request that just missed one waits for it,
                       and then for its own
    max_batch_delay    1 ms: under load the queue fills batches by itself, and without it waiting is waiting
    job_queue_size     what can queue and still be answered in time; the rest had better hear 503 at once
    workers            one, unless more of them answer more: they share the processor
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import linear_regression

from load.errors import NotPossible, NotServed
from load.measure.summary import Summary
from load.runs.scenarios import closed, opened, pacer_for
from load.runs.search import Found, Grid, fair, highest, is_met
from load.runs.served import Served
from load.runs.session import Session, Subject
from torchserve_client.management import ManagementError

MAX_BATCH_DELAY_MS = 1
READY_TIMEOUT_S = 300.0
# As many again wait while a batch runs, so that the next one is full.
CLIENTS_PER_BATCH = 2
# Another worker takes its memory again: it must bring this much.
WORTHWHILE = 1.1
# The search for the rate: from a tenth of the saturated throughput to all of it.
GRID_STEPS = 20


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size, measured: what its batches held on average, and how long one took."""

    batch_size: float
    batch_ms: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Time of a batch of n: per_item_ms * n + per_batch_ms."""

    per_item_ms: float
    per_batch_ms: float

    @classmethod
    def fit(cls, points: Sequence[Point]) -> "Curve":
        """Least squares, and no batch for less than nothing: such a fit, and that of one size, goes through 0."""
        sizes, times_ms = [point.batch_size for point in points], [point.batch_ms for point in points]
        if len(set(sizes)) > 1:
            slope, intercept = linear_regression(sizes, times_ms)
            if intercept > 0:
                return cls(slope, intercept)
        return cls(linear_regression(sizes + [-size for size in sizes], times_ms + [-ms for ms in times_ms]).slope, 0.0)

    def batch_ms(self, size: float) -> float:
        """How long a batch takes."""
        return self.per_item_ms * size + self.per_batch_ms


@dataclass(frozen=True, slots=True)
class Advice:
    """What to register with."""

    batch_size: int
    max_batch_delay_ms: int
    job_queue_size: int


def advise(curve: Curve, latency_threshold_ms: float, max_batch_size: int) -> Advice:
    """Apply the rules above.

    Raises:
        NotPossible: a single item takes longer than the threshold.
    """
    single_ms = curve.batch_ms(1)
    if single_ms > latency_threshold_ms:
        raise NotPossible(
            f"a single request takes {single_ms:.1f} ms: no setting answers within {latency_threshold_ms:g} ms"
        )
    fitting = (n for n in range(max_batch_size, 0, -1) if 2 * curve.batch_ms(n) <= latency_threshold_ms)
    size = next(fitting, 1)
    batches_that_wait = latency_threshold_ms / curve.batch_ms(size) - 1
    return Advice(size, MAX_BATCH_DELAY_MS, max(size, math.floor(batches_that_wait * size)))


class Tuner:
    """Measures one model in variants."""

    def __init__(self, session: Session, served: Served, archive: str | None, say: Callable[[str], None]) -> None:
        """Look the model up.

        Args:
            session: how to measure; with the latency threshold.
            served: the model, registered.
            archive: what to register its variants from; None for what it was registered from.
            say: told each result, as a line.

        Raises:
            NotServed: it is not registered, or the management API does not answer.
        """
        self._session = session
        self._served = served
        self._say = say
        try:
            self.archive = archive or str(served.management.describe(served.model)["modelUrl"])
        except ManagementError as error:
            raise NotServed(f"tune needs the management API and {served.model} registered with it: {error}") from error

    @contextmanager
    def variant(self, batch_size: int, workers: int = 1) -> Iterator[Subject]:
        """The model under another name, registered with these, until the end of the block."""
        served = replace(self._served, model=f"{self._served.model}-tune", version=None)
        try:
            served.management.register(
                self.archive,
                batch_size=batch_size,
                max_batch_delay_ms=MAX_BATCH_DELAY_MS,
                initial_workers=workers,
                model_name=served.model,
            )
        except ManagementError as error:
            raise NotServed(f"cannot register {self.archive} as {served.model}: {error}") from error
        try:
            served.management.wait_ready(served.model, READY_TIMEOUT_S)
            yield self._session.subject(served, f"batch_size {batch_size}, {workers} worker(s)", {})
        except ManagementError as error:
            raise NotServed(f"{served.model}, batch_size {batch_size}: {error}") from error
        finally:
            served.management.unregister(served.model)

    def curve(self, sizes: Sequence[int]) -> tuple[Curve, list[Point]]:
        """Measure the time of full batches, up to the first that takes longer than the threshold."""
        points: list[Point] = []
        for size in sizes:
            with self.variant(size) as subject:
                point = self._point(subject, size)
            points.append(point)
            self._say(f"batches of {point.batch_size:5.1f}: {point.batch_ms:8.1f} ms")
            if point.batch_ms > (self._session.latency_threshold_ms or math.inf):
                break
        return Curve.fit(points), points

    def best(self, advice: Advice, max_workers: int, percentile: float) -> tuple[int, Found[Summary]]:
        """The number of workers that holds the highest rate, and that rate, verified by a run of its own."""
        best: tuple[int, Found[Summary]] | None = None
        saturated_per_s = 0.0
        for workers in range(1, max_workers + 1):
            with self.variant(advice.batch_size, workers) as subject:
                summary = self._saturate(subject, advice.batch_size * workers)
                self._say(f"{workers} worker(s): {summary.throughput_per_s:.1f}/s when saturated")
                if summary.throughput_per_s < WORTHWHILE * saturated_per_s:
                    break
                saturated_per_s = summary.throughput_per_s
                found = self._search(subject, saturated_per_s, percentile)
            if best is None or (found.load or 0.0) > WORTHWHILE * (best[1].load or 0.0):
                best = workers, found
        assert best is not None  # noqa: S101 (max_workers is at least 1)
        return best

    def _search(self, subject: Subject, saturated_per_s: float, percentile: float) -> Found[Summary]:
        pace = pacer_for("poisson", 0, 1)
        step = saturated_per_s / GRID_STEPS

        def measure(rate: float) -> Summary:
            load = opened(pace(rate))
            return _complete(self._session.measure(subject, load, f"{subject.run.label}, {load}"))

        grid = Grid(2 * step, GRID_STEPS * step, step)
        return highest(grid, fair(measure, percentile), lambda summary: is_met(summary, percentile))

    def _saturate(self, subject: Subject, size: int) -> Summary:
        load = closed(CLIENTS_PER_BATCH * size)
        return _complete(self._session.measure(subject, load, f"{subject.run.label}, {load}"))

    def _point(self, subject: Subject, size: int) -> Point:
        summary = self._saturate(subject, size)
        if not summary.completed:
            raise NotServed(f"batch_size {size}: no request was answered 200; statuses {summary.failures}")
        mean_size = summary.timings.mean_batch_size or size
        return Point(mean_size, 1e3 * mean_size / summary.throughput_per_s)


def _complete(summary: Summary) -> Summary:
    """Ctrl-C ends all of it: half a search advises nothing."""
    if summary.is_interrupted:
        raise KeyboardInterrupt
    return summary
