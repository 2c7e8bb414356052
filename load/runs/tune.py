"""Finds out what to register a model with, for a latency that is wanted.

    batch sizes 1, 2, 4, ... -> saturated -> time of a batch -> Curve: a*n + b -> Advice -> highest rate that holds

A registered model's batch_size cannot be changed, so each candidate is registered beside it, under a name of its own
(MODEL-tune), measured and unregistered; the model itself stays as it is, idle meanwhile, and so does its memory.

The rules, for a server that forms a batch of what has queued while the last one ran:
    batch_size         is the largest whose batch takes half the threshold: a request that just missed a batch waits
                       for that one, and then for its own
    max_batch_delay    is 1 ms: under load the queue fills batches by itself, and without load a delay is only a delay
    job_queue_size     is what can queue and still be answered in time; the rest had better hear 503 at once
    workers            is one, unless more of them answer more: they share the processor
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import linear_regression, median

from load.errors import NotPossible, NotServed
from load.measure.summary import Summary
from load.runs.scenarios import closed, opened, pacer_for
from load.runs.search import Found, Grid, fair, highest, is_met
from load.runs.served import Served
from load.runs.session import Session, Subject
from torchserve_client.management import ManagementError


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how candidates are measured and chosen."""

    # max_batch_delay of every candidate, ms: the least that TorchServe takes (the rule above).
    max_batch_delay_ms: int = 1
    # Seconds for a candidate's workers to become ready: more than twice TorchServe's default of startupTimeout, 120 s.
    ready_timeout_s: float = 300.0
    # Clients for each request of a batch: as many again queue while a batch runs, so that the next one is full.
    clients_per_batch: int = 2
    # Throughput that another worker must bring, as a ratio: it takes its memory again, and runs differ by some percent.
    worthwhile: float = 1.1
    # Steps of the search for the rate, which goes from a tenth of the saturated throughput to all of it.
    grid_steps: int = 20


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size, measured.

    Attributes:
        batch_size: mean number of items that its batches held.
        batch_ms: mean time that one took, from one batch to the next.
        forward_ms: of that, the mean time in the engine; None where the answers do not say.
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
    def fit(cls, points: Sequence[Point]) -> "Curve":
        """Fit least squares; a fit in which an empty batch takes less than nothing, or of one size, goes through 0."""
        sizes, times_ms = [point.batch_size for point in points], [point.batch_ms for point in points]
        if len(set(sizes)) > 1:
            slope, intercept = linear_regression(sizes, times_ms)
            if intercept > 0:
                return cls(slope, intercept)
        return cls(linear_regression(sizes + [-size for size in sizes], times_ms + [-ms for ms in times_ms]).slope, 0.0)

    def batch_ms(self, size: float) -> float:
        """Return the ms that a batch of `size` items takes."""
        return self.per_item_ms * size + self.per_batch_ms


@dataclass(frozen=True, slots=True)
class Advice:
    """The parameters to register a model with.

    Attributes:
        batch_size: most requests of a batch.
        max_batch_delay_ms: most ms that a batch waits to be filled.
        job_queue_size: most requests that queue.
    """

    batch_size: int
    max_batch_delay_ms: int
    job_queue_size: int


def advise(curve: Curve, latency_threshold_ms: float, max_batch_size: int) -> Advice:
    """Apply the rules above.

    Args:
        curve: time of a batch by its size.
        latency_threshold_ms: most latency that is wanted.
        max_batch_size: largest batch size that is considered.

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
    queued_batches = latency_threshold_ms / curve.batch_ms(size) - 1
    return Advice(size, TUNING.max_batch_delay_ms, max(size, math.floor(queued_batches * size)))


class Tuner:
    """Measures variants of one model."""

    def __init__(self, session: Session, served: Served, archive: str | None, say: Callable[[str], None]) -> None:
        """Look the model up.

        Args:
            session: measures; it has a latency threshold.
            served: the model, which is registered.
            archive: archive that its variants are registered from; None takes the model's own.
            say: called with each result, as a line.

        Raises:
            NotServed: the model is not registered, or the management API does not answer.
        """
        self._session = session
        self._served = served
        self._say = say
        self._ready_s: list[float] = []
        try:
            self.archive = archive or str(served.management.describe(served.model)["modelUrl"])
        except ManagementError as error:
            raise NotServed(f"tune needs the management API and {served.model} registered with it: {error}") from error

    @property
    def ready_s(self) -> float:
        """The median time of the variants so far, from registering one to READY."""
        return median(self._ready_s)

    @contextmanager
    def variant(self, batch_size: int, workers: int = 1) -> Iterator[Subject]:
        """Register the model under another name until the end of the block.

        Args:
            batch_size: most requests of a batch.
            workers: number of workers.

        Raises:
            NotServed: the variant cannot be registered, or is not ready in time.
        """
        served = replace(self._served, model=f"{self._served.model}-tune", version=None)
        registered_s = time.monotonic()
        try:
            served.management.register(
                self.archive,
                batch_size=batch_size,
                max_batch_delay_ms=TUNING.max_batch_delay_ms,
                initial_workers=workers,
                model_name=served.model,
            )
        except ManagementError as error:
            raise NotServed(f"cannot register {self.archive} as {served.model}: {error}") from error
        try:
            served.management.wait_ready(served.model, TUNING.ready_timeout_s)
            self._ready_s.append(time.monotonic() - registered_s)
            yield self._session.subject(served, f"batch_size {batch_size}, {workers} worker(s)", {})
        except ManagementError as error:
            raise NotServed(f"{served.model}, batch_size {batch_size}: {error}") from error
        finally:
            served.management.unregister(served.model)

    def curve(self, sizes: Sequence[int]) -> tuple[Curve, list[Point]]:
        """Measure the time of full batches, up to the first that takes longer than the threshold.

        Args:
            sizes: batch sizes, ascending.

        Returns:
            The fit, and the points that it was made of.

        Raises:
            NotServed: a variant cannot be measured.
        """
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
        """Find the number of workers that holds the highest rate.

        Args:
            advice: batch size and delay of every variant.
            max_workers: most workers that are tried, at least 1.
            percentile: share of all requests that must be in time, in %.

        Returns:
            The number of workers, and the highest rate in requests per second, verified by a run of its own.

        Raises:
            NotServed: a variant cannot be measured.
        """
        best: tuple[int, Found[Summary]] | None = None
        saturated_per_s = 0.0
        for workers in range(1, max_workers + 1):
            with self.variant(advice.batch_size, workers) as subject:
                summary = self._saturate(subject, advice.batch_size * workers)
                self._say(f"{workers} worker(s): {summary.throughput_per_s:.1f}/s when saturated")
                if summary.throughput_per_s < TUNING.worthwhile * saturated_per_s:
                    break
                saturated_per_s = summary.throughput_per_s
                found = self._search(subject, saturated_per_s, percentile)
            if best is None or (found.load or 0.0) > TUNING.worthwhile * (best[1].load or 0.0):
                best = workers, found
        assert best is not None  # noqa: S101 (max_workers is at least 1)
        return best

    def _search(self, subject: Subject, saturated_per_s: float, percentile: float) -> Found[Summary]:
        pace = pacer_for("poisson", 0, 1)
        step = saturated_per_s / TUNING.grid_steps

        def measure(rate: float) -> Summary:
            load = opened(pace(rate))
            return _complete(self._session.measure(subject, load, f"{subject.run.label}, {load}"))

        grid = Grid(2 * step, TUNING.grid_steps * step, step)
        return highest(grid, fair(measure, percentile), lambda summary: is_met(summary, percentile))

    def _saturate(self, subject: Subject, size: int) -> Summary:
        load = closed(TUNING.clients_per_batch * size)
        return _complete(self._session.measure(subject, load, f"{subject.run.label}, {load}"))

    def _point(self, subject: Subject, size: int) -> Point:
        summary = self._saturate(subject, size)
        if not summary.completed:
            raise NotServed(f"batch_size {size}: no request was answered 200; statuses {summary.failures}")
        mean_size = summary.timings.mean_batch_size or size
        return Point(mean_size, 1e3 * mean_size / summary.throughput_per_s, summary.timings.mean_ms.get("forward"))


def _complete(summary: Summary) -> Summary:
    """Return a run that came to its end; Ctrl-C ends the whole search, since half of one advises nothing."""
    if summary.is_interrupted:
        raise KeyboardInterrupt
    return summary
