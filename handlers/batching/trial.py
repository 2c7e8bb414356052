"""Chooses precision and number of streams while a worker loads, and measures how long micro-batches take.

    engine's precisions that agree with fp32, streams, settings -> candidates -> warm up and measure each one -> Choice
                                                 stored measurements -> one item on each engine -> Choice

A measurement runs the steps of serving from `collate` to `split`: one item on the whole engine, and full micro-batches
on all streams side by side; in adaptive mode beside a thread that decodes. A pass on all threads waits for the thread
that shares its core: on two cores with AVX2, MobileNetV2 took 1.85 times as long beside a decoder, and 1.45 times in
two streams. A worker has one precision and one number of streams for micro-batches of all sizes, since a result must
not depend on other requests. So the trial chooses the candidate with the least product of both times of an item, single
and concurrent. Its measurements seed the latency models. A single candidate is measured in adaptive mode or on a GPU.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import copy
from math import inf
from statistics import fmean
from typing import NamedTuple, TypeVar

from handlers.batching import accuracy, measurements
from handlers.batching.measurements import Candidate, Measurement, Seeds
from handlers.engines import Arrangement, Divisible, Engine, Precise
from handlers.pipeline.task import Task, inputs_of, samples_of
from handlers.proofs import Proof
from handlers.protocol.requests import Payload
from handlers.warm_up import decode_items, run

logger = logging.getLogger(__name__)

TRIAL_S = 2.0  # seconds after the first measurement in which others may begin: for precisions, and again for streams
FULL_S = 0.1  # duration of a full micro-batch in seconds: long enough to see how long each item takes
# Turns of each candidate, of which the quickest run of each size counts: other load slows all candidates alike.
ROUNDS = 5
# A candidate that takes this many times as long as another, single and concurrent, has no further turn: a stall of the
# machine would affect one of both.
FAR = 2.0
# Least gain over the likeliest candidate's product, as a share: times on a shared machine vary by some percent.
LEAST_GAIN = 0.05

AnyTask = TypeVar("AnyTask", bound=Task)


class Choice(NamedTuple):
    arrangement: Arrangement
    measurement: Measurement


def copy_with_engine(task: AnyTask, engine: Engine) -> AnyTask:
    """Copy a task for another engine; both share everything else."""
    other = copy(task)
    other.engine = engine
    return other


def choose_candidate(figures: Mapping[Candidate, tuple[float, float]]) -> Candidate:
    """Return the least product of both times; the first, likeliest one unless another is LEAST_GAIN better."""
    products = {candidate: single_s * item_s for candidate, (single_s, item_s) in figures.items()}
    likeliest, best = next(iter(products)), min(products, key=products.__getitem__)
    return best if products[best] < (1 - LEAST_GAIN) * products[likeliest] else likeliest


class Trial:
    """The candidates of one loaded task, and their measurements."""

    def __init__(self, task: Task, window: int) -> None:
        """Choose the precisions of a loaded task that agree with fp32, and read its stored measurements.

        `window` is the registration's batch_size.
        """
        config, engine = task.config, task.engine
        self._task = task
        self._is_adaptive = config.scheduling.mode == "adaptive"
        self._most_items: int = min(window, config.max_batch_items)
        self._is_on_gpu = task.archive.device.type != "cpu"
        self._first_s: float | None = None
        self._decoded_beside: Payload | None = None  # decoded beside full micro-batches; None in classic mode
        self._engines: dict[str, Engine] = {}
        self._precisions: tuple[str, ...] = ("",)
        self.proofs: Mapping[str, Proof] = {}
        if isinstance(engine, Precise):
            self.proofs = accuracy.find_proofs(task, engine.precisions, self._in_precision)
            self._precisions = accuracy.choose_precisions(task, engine.precisions, self.proofs)
            self._engines = {each: made for each, made in self._engines.items() if each in self._precisions}
        self._counts: tuple[int, ...] = (1,)
        # Classic mode has streams only if the whole engine consists of them.
        if isinstance(engine, Divisible) and (self._is_adaptive or engine.deals_out):
            streams = config.scheduling.streams
            self._counts = tuple(engine.stream_counts) if streams == "auto" else (int(streams),)
        kind = " ".join(engine.description.split()[:2])
        settings = (config.scheduling.mode, config.threads, self._precisions, self._counts, self._most_items)
        self._path = measurements.path_for(task, f"{kind} {settings}") if task.archive.fingerprint else None
        self._known = measurements.read(self._path)

    @property
    def engine(self) -> Engine:
        """The task's engine, in the best precision by the stored measurements, or else in the likeliest."""
        return self._in_precision(self._best().precision if self._known else self._precisions[0])

    def choose(self) -> Choice:
        """Choose, and run every sample on the chosen engines, so that no request pays for a first time."""
        choice = self._choose()
        for sample in samples_of(self._task)[1:]:
            (item,) = decode_items(self._task, [sample])
            self._run_once([choice.arrangement.whole, *choice.arrangement.streams], item)
        return choice

    def _choose(self) -> Choice:
        samples = samples_of(self._task)
        has_choice = len(self._precisions) * len(self._counts) > 1
        if not samples or not (self._known or has_choice or self._is_adaptive or self._is_on_gpu):
            return Choice(self._arrange(Candidate(self._precisions[0], self._counts[0])), Measurement([], []))
        (item,) = decode_items(self._task, samples[:1])
        self._decoded_beside = samples[0] if self._is_adaptive else None
        arrangement, origin = None if self._known else self._try_first(item), ""
        if arrangement is None:
            arrangement, origin = self._arrange(self._best()), " as stored by an earlier start"
            self._run_once([arrangement.whole, *arrangement.streams], item)
        if has_choice:
            self._log(origin)
        return Choice(arrangement, self._known[self._best()])

    def _try_first(self, item: object) -> Arrangement | None:
        """Measure and return the best arrangement; None if another worker has measured meanwhile."""
        with measurements.lock(self._path):
            self._known = measurements.read(self._path)
            return None if self._known else self._try_all(item)

    def _try_all(self, item: object) -> Arrangement:
        """Measure every precision on the whole engine, then the best one in streams; return the best arrangement."""
        arrangements: dict[Candidate, Arrangement] = {}
        untried, precision = list[Candidate](), self._precisions[0]
        if len(self._precisions) > 1:
            untried = self._measure([Candidate(each, self._counts[0]) for each in self._precisions], arrangements, item)
            precision = self._best().precision
        if len(self._counts) > 1 or not self._known:
            # The whole engine needs as many turns as its streams, since the quickest run counts.
            self._known.pop(Candidate(precision, self._counts[0]), None)
            untried += self._measure([Candidate(precision, each) for each in self._counts], arrangements, item)
        if untried:
            # An untried candidate may be the best on a machine with less load: the next start tries again.
            logger.warning("Candidates not measured for lack of time: %s", ", ".join(map(str, untried)))
        elif self._path:
            measurements.write(self._path, [*self._known.items()])
        return arrangements[self._best()]

    def _measure(
        self, candidates: Sequence[Candidate], arrangements: dict[Candidate, Arrangement], item: object
    ) -> list[Candidate]:
        """Measure candidates in turn, ROUNDS times if time allows; return those without a measurement."""
        ends_s, left = inf, list(candidates)
        for number in range(ROUNDS):
            for candidate in left:
                # A further round is complete or does not begin.
                if time.perf_counter() > ends_s and (number == 0 or candidate is left[0]):
                    return [each for each in candidates if each not in self._known]
                if candidate not in arrangements:
                    arrangements[candidate] = self._arrange(candidate)
                    # First runs, before the measurement; the whole engine beside streams was a candidate itself.
                    self._run_once(arrangements[candidate].streams or [arrangements[candidate].whole], item)
                measurement = self._measure_one(candidate, arrangements[candidate], item)
                before = self._known.get(candidate, measurement)
                self._known[candidate] = Measurement(*map(_keep_quickest, before, measurement))
                ends_s = min(ends_s, time.perf_counter() + TRIAL_S)
            left = self._drop_far(left)
        return []

    def _drop_far(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Leave out candidates that take FAR times the least time, both single and concurrent."""
        figures = self._figures()
        least_single_s = min(figures[each][0] for each in candidates)
        least_item_s = min(figures[each][1] for each in candidates)

        def is_near(candidate: Candidate) -> bool:
            single_s, item_s = figures[candidate]
            return single_s <= FAR * least_single_s or item_s <= FAR * least_item_s

        return [each for each in candidates if is_near(each)]

    def _measure_one(self, candidate: Candidate, arrangement: Arrangement, item: object) -> Measurement:
        """Time an item and a full micro-batch on the whole engine, and on all streams side by side."""
        task = copy_with_engine(self._task, arrangement.whole)
        known = self._known.get(Candidate(candidate.precision, 1))
        if known is not None and candidate.streams > 1 and not getattr(task.engine, "deals_out", True):
            whole = known.whole
        else:
            whole = measure([task], item, self._count_full, self._decoded_beside)
        if not (arrangement.streams and self._is_adaptive):
            return Measurement(whole, [])
        streams = [copy_with_engine(self._task, each) for each in arrangement.streams]
        return Measurement(whole, measure(streams, item, self._count_full, self._decoded_beside))

    def _run_once(self, engines: Sequence[Engine], item: object) -> None:
        for engine in engines:
            run(copy_with_engine(self._task, engine), [item])

    def _count_full(self, item_s: float) -> int:
        """Return the items of a full micro-batch, for all candidates by the first one's time of an item."""
        self._first_s = self._first_s or item_s
        return min(self._most_items, int(FULL_S / self._first_s))

    def _arrange(self, candidate: Candidate) -> Arrangement:
        engine = self._in_precision(candidate.precision)
        return engine.divide(candidate.streams) if isinstance(engine, Divisible) else Arrangement(engine)

    def _in_precision(self, precision: str) -> Engine:
        """Return the engine in a precision; it is compiled once, for the accuracy check and the measurements."""
        if precision not in self._engines:
            engine = self._task.engine
            self._engines[precision] = engine.in_precision(precision) if isinstance(engine, Precise) else engine
        return self._engines[precision]

    def _figures(self) -> dict[Candidate, tuple[float, float]]:
        """Return the seconds of an item of each measured candidate, single and concurrent."""
        figures = {}
        for candidate, (whole, stream) in self._known.items():
            single_tokens, single_s = whole[0]
            tokens, seconds = (stream or whole)[-1]
            figures[candidate] = (single_s, seconds * single_tokens / tokens / (candidate.streams if stream else 1))
        return figures

    def _best(self) -> Candidate:
        return choose_candidate(self._figures())

    def _log(self, origin: str) -> None:
        figures, best = self._figures(), self._best()
        parts = [f"{each} {1e3 * single_s:.2f} / {1e3 * item_s:.2f}" for each, (single_s, item_s) in figures.items()]
        logger.warning("Selected %s; ms per item, single / concurrent%s: %s", best, origin, ", ".join(parts))


def measure(
    tasks: Sequence[Task], item: object, count_full: Callable[[float], int], decoded_beside: Payload | None
) -> Seeds:
    """Time one item and a full micro-batch of it, while another thread decodes `decoded_beside` repeatedly."""
    tokens, item_s = tasks[0].cost(item).length, _time_s(tasks, [item])
    size = count_full(item_s)
    if size < 2:
        return [(tokens, item_s)]
    with nullcontext() if decoded_beside is None else _decode_repeatedly(tasks[0], decoded_beside):
        padded = inputs_of(tasks[0]).overhead.padded(size)
        return [(tokens, item_s), (padded * tokens, _time_s(tasks, [item] * size))]


@contextmanager
def _decode_repeatedly(task: Task, payload: Payload) -> Iterator[None]:
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            decode_items(task, [payload])

    thread = threading.Thread(target=work, name="trial-decoder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _time_s(tasks: Sequence[Task], items: Sequence[object]) -> float:
    """Run one micro-batch on each task at once, and return the mean of their seconds, as streams do not wait."""

    def time_one_s(task: Task) -> float:
        started_s = time.perf_counter()
        run(task, items)
        return time.perf_counter() - started_s

    if len(tasks) == 1:
        return time_one_s(tasks[0])
    with ThreadPoolExecutor(len(tasks), "trial") as pool:
        return fmean(pool.map(time_one_s, tasks))


def _keep_quickest(before: Seeds, now: Seeds) -> Seeds:
    return [min(pair) for pair in zip(before, now, strict=True)]
