"""How a worker finds out, as it loads, which precision and how many streams serve best, and what micro-batches take.

    engine's precisions and streams, settings -> candidates -> each one warmed up and measured -> Choice
                                                 remembered -> one item on each engine         -> Choice

A measurement runs what serving runs: one item on the whole engine, and full micro-batches on all streams side by side,
from `collate` to `split`, for adaptive mode beside a thread that decodes. A pass on all threads waits for the one that
shares its core: two cores of AVX2 took 1.85 times as long for MobileNetV2 beside a decoder, and 1.45 times in two
streams. A worker has one precision and one number of streams for micro-batches of all sizes: an answer must not depend
on which other requests came. So the candidate with the least product of both times of an item, alone and among many, is
taken, and its measurements are what the latency models start from. With a single candidate an adaptive worker measures
that one, and a classic worker nothing.
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
from typing import Any, NamedTuple, TypeVar

from handlers.batching import measurements
from handlers.batching.measurements import Candidate, Measured, Seeds
from handlers.engines import Arrangement, Divisible, Engine, Precise
from handlers.pipeline.task import Task
from handlers.protocol.requests import Payload
from handlers.warm_up import decode_items, run

logger = logging.getLogger(__name__)

# Seconds after the first measurement in which others may begin: for precisions, and again for streams.
TRIAL_S = 2.0
# A full micro-batch has as many items as run in this time: long enough to see what each item takes.
FULL_S = 0.1
# Candidates take turns so often, and the quickest run of each size counts: what else the machine does meanwhile slows
# all of them alike.
ROUNDS = 5
# A candidate that takes so many times as long as another, alone and among others, has no further turn: a stall of the
# machine would hit one of both.
FAR = 2.0
# Share by which a product must be less than the likeliest's: a shared machine's times change by some percent.
LEAST_GAIN = 0.05

AnyTask = TypeVar("AnyTask", bound=Task)


class Choice(NamedTuple):
    """The engine and its streams, and what micro-batches took on them."""

    arrangement: Arrangement
    measured: Measured


def on_engine(task: AnyTask, engine: Engine) -> AnyTask:
    """Return the task on another engine; all else is shared."""
    other = copy(task)
    other.engine = engine
    return other


def chosen(figures: Mapping[Candidate, tuple[float, float]]) -> Candidate:
    """Return the candidate with the least product of both times, or the likeliest unless another is clearly better.

    The figures are seconds of an item alone and among many; the likeliest comes first.
    """
    products = {candidate: alone_s * item_s for candidate, (alone_s, item_s) in figures.items()}
    likeliest, best = next(iter(products)), min(products, key=products.__getitem__)
    return best if products[best] < (1 - LEAST_GAIN) * products[likeliest] else likeliest


class Trial:
    """The candidates of one loaded task, and what is known of them."""

    def __init__(self, task: Task, window: int) -> None:
        """Look up what an earlier start measured of a loaded task; `window` is the registration's batch_size."""
        config, engine = task.config, task.engine
        self._task = task
        self._is_adaptive = config.scheduling.mode == "adaptive"
        self._most_items: int = min(window, config.max_batch_items)
        self._first_s: float | None = None
        # What is decoded beside full micro-batches; None where nothing is.
        self._beside: Payload | None = None
        self._precisions = tuple(engine.precisions) if isinstance(engine, Precise) else ("",)
        self._counts: tuple[int, ...] = (1,)
        # Classic mode has streams only where the whole engine is made of them.
        if isinstance(engine, Divisible) and (self._is_adaptive or engine.deals_out):
            wanted = config.scheduling.streams
            self._counts = tuple(engine.stream_counts) if wanted == "auto" else (int(wanted),)
        kind = " ".join(engine.description.split()[:2])
        settings = (config.scheduling.mode, config.threads, self._precisions, self._counts, self._most_items)
        self._path = measurements.path_of(task, f"{kind} {settings}") if task.fingerprint else None
        self._known = measurements.read(self._path)

    @property
    def engine(self) -> Engine:
        """The task's engine, in the precision that is remembered as best or else is the likeliest."""
        engine = self._task.engine
        precision = self._best().precision if self._known else self._precisions[0]
        return engine.in_precision(precision) if isinstance(engine, Precise) else engine

    def choose(self) -> Choice:
        """Choose, and run every sample on the chosen engines, so that no request pays for a first time."""
        choice = self._choose()
        for sample in self._task.samples()[1:]:
            (item,) = decode_items(self._task, [sample])
            self._run_once([choice.arrangement.whole, *choice.arrangement.streams], item)
        return choice

    def _choose(self) -> Choice:
        sample = self._task.sample()
        has_choice = len(self._precisions) * len(self._counts) > 1
        if sample is None or not (self._known or has_choice or self._is_adaptive):
            return Choice(self._arranged(Candidate(self._precisions[0], self._counts[0])), Measured([], []))
        (item,) = decode_items(self._task, [sample])
        self._beside = sample if self._is_adaptive else None
        arrangement, when = None if self._known else self._try_first(item), ""
        if arrangement is None:
            arrangement, when = self._arranged(self._best()), " as an earlier start measured it"
            self._run_once([arrangement.whole, *arrangement.streams], item)
        if has_choice:
            self._log(when)
        return Choice(arrangement, self._known[self._best()])

    def _try_first(self, item: Any) -> Arrangement | None:
        """Measure and return the best arrangement; None where another worker has measured meanwhile."""
        with measurements.held(self._path):
            self._known = measurements.read(self._path)
            return None if self._known else self._try_all(item)

    def _try_all(self, item: Any) -> Arrangement:
        """Measure every precision on the whole engine, then the best one in streams; return the best arrangement."""
        arrangements: dict[Candidate, Arrangement] = {}
        untried, precision = list[Candidate](), self._precisions[0]
        if len(self._precisions) > 1:
            untried = self._measure([Candidate(each, self._counts[0]) for each in self._precisions], arrangements, item)
            precision = self._best().precision
        if len(self._counts) > 1 or not self._known:
            # The quickest of its runs counts, so it has as many as its streams.
            self._known.pop(Candidate(precision, self._counts[0]), None)
            untried += self._measure([Candidate(precision, each) for each in self._counts], arrangements, item)
        if untried:
            # One of them may be the best, on a machine that was busy with something else: the next start tries again.
            logger.warning("There was no time to try %s", ", ".join(map(str, untried)))
        elif self._path:
            measurements.write(self._path, self._known)
        return arrangements[self._best()]

    def _measure(
        self, candidates: Sequence[Candidate], arrangements: dict[Candidate, Arrangement], item: Any
    ) -> list[Candidate]:
        """Measure candidates in turn, ROUNDS times as far as time allows; return those that were not measured."""
        ends_s, left = inf, list(candidates)
        for number in range(ROUNDS):
            for candidate in left:
                # A further round gives each candidate its turn or none.
                if time.perf_counter() > ends_s and (number == 0 or candidate is left[0]):
                    return [each for each in candidates if each not in self._known]
                if candidate not in arrangements:
                    arrangements[candidate] = self._arranged(candidate)
                    # Before it is measured; the whole engine beside streams was a candidate itself.
                    self._run_once(arrangements[candidate].streams or [arrangements[candidate].whole], item)
                measured = self._measured(candidate, arrangements[candidate], item)
                before = self._known.get(candidate, measured)
                self._known[candidate] = Measured(*map(_quickest, before, measured))
                ends_s = min(ends_s, time.perf_counter() + TRIAL_S)
            left = self._near(left)
        return []

    def _near(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Leave out those that take FAR times the least time both alone and among others."""
        figures = self._figures()
        least_alone_s = min(figures[each][0] for each in candidates)
        least_item_s = min(figures[each][1] for each in candidates)

        def is_near(candidate: Candidate) -> bool:
            alone_s, item_s = figures[candidate]
            return alone_s <= FAR * least_alone_s or item_s <= FAR * least_item_s

        return [each for each in candidates if is_near(each)]

    def _measured(self, candidate: Candidate, arrangement: Arrangement, item: Any) -> Measured:
        """Time an item and a full micro-batch on the whole engine, and on all streams side by side."""
        task = on_engine(self._task, arrangement.whole)
        same = self._known.get(Candidate(candidate.precision, 1))
        if same is not None and candidate.streams > 1 and not getattr(task.engine, "deals_out", True):
            whole = same.whole
        else:
            whole = measure([task], item, self._full, self._beside)
        if not (arrangement.streams and self._is_adaptive):
            return Measured(whole, [])
        streams = [on_engine(self._task, each) for each in arrangement.streams]
        return Measured(whole, measure(streams, item, self._full, self._beside))

    def _run_once(self, engines: Sequence[Engine], item: Any) -> None:
        """Run an item on each engine."""
        for engine in engines:
            run(on_engine(self._task, engine), [item])

    def _full(self, item_s: float) -> int:
        """Return how many items a full micro-batch has: the first candidate's time of an item decides for all."""
        self._first_s = self._first_s or item_s
        return min(self._most_items, int(FULL_S / self._first_s))

    def _arranged(self, candidate: Candidate) -> Arrangement:
        engine = self._task.engine
        if isinstance(engine, Precise):
            engine = engine.in_precision(candidate.precision)
        return engine.divide(candidate.streams) if isinstance(engine, Divisible) else Arrangement(engine)

    def _figures(self) -> dict[Candidate, tuple[float, float]]:
        """Return the seconds of an item alone, and among as many as were measured."""
        figures = {}
        for candidate, (whole, stream) in self._known.items():
            one_tokens, one_s = whole[0]
            tokens, seconds = (stream or whole)[-1]
            figures[candidate] = (one_s, seconds * one_tokens / tokens / (candidate.streams if stream else 1))
        return figures

    def _best(self) -> Candidate:
        return chosen(self._figures())

    def _log(self, when: str) -> None:
        """Log what each candidate took, and which one is taken."""
        figures, best = self._figures(), self._best()
        parts = [f"{each} {1e3 * alone_s:.2f} and {1e3 * item_s:.2f}" for each, (alone_s, item_s) in figures.items()]
        logger.warning("Runs %s: ms an item alone and among others%s: %s", best, when, ", ".join(parts))


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(tasks: Sequence[Task], item: Any, full: Callable[[float], int], beside: Payload | None) -> Seeds:
    """Time a micro-batch of one item, and a full one that repeats it, on the whole engine or on all streams at once.

    `full` returns how many items a full one has if an item takes so many seconds. Another thread decodes `beside` over
    and over while the full one runs.
    """
    tokens, item_s = tasks[0].cost(item).length, _seconds(tasks, [item])
    size = full(item_s)
    if size < 2:
        return [(tokens, item_s)]
    with nullcontext() if beside is None else _decoding(tasks[0], beside):
        return [(tokens, item_s), (size * tokens, _seconds(tasks, [item] * size))]


@contextmanager
def _decoding(task: Task, payload: Payload) -> Iterator[None]:
    """Decode a payload over and over on another thread."""
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


def _seconds(tasks: Sequence[Task], items: Sequence[Any]) -> float:
    """Run the same micro-batch on each of these at once, and return what it took on average: none waits for another."""

    def seconds(task: Task) -> float:
        started_s = time.perf_counter()
        run(task, items)
        return time.perf_counter() - started_s

    if len(tasks) == 1:
        return seconds(tasks[0])
    with ThreadPoolExecutor(len(tasks), "trial") as pool:
        return fmean(pool.map(seconds, tasks))


def _quickest(before: Seeds, now: Seeds) -> Seeds:
    """Return the fewer seconds of each size."""
    return [min(pair) for pair in zip(before, now, strict=True)]
