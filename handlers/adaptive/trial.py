"""How a worker finds out, as it loads, which precision and how many streams serve best, and what micro-batches take.

    engine's precisions and streams, settings -> candidates -> each one warmed up and measured -> choice -> Settled
                                                 remembered -> choice, one item on each engine  -> Settled

What is compared is what serving does: one item on the whole engine, and full micro-batches on all streams side by side,
from `collate` to `split`. What was measured of the taken one is what the latency models start from. Where there is
nothing to choose, an adaptive worker measures the only candidate, and a classic one nothing.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from handlers.adaptive.choice import Candidate, Figures, chosen, told
from handlers.adaptive.measurements import Measurements, Seeds, folder_of
from handlers.engines import Arrangement, Divisible, Engine, Precise
from handlers.pipeline import runner
from handlers.pipeline.micro_batches import Overhead
from handlers.pipeline.warm_up import decoded, run
from handlers.protocol.requests import Payload

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is measured, and for how long.

    Attributes:
        trial_s: seconds that all candidates may take beside the first, which warms the engine up in any case. None
            begins that would take longer than is left, by what the one before it took.
        full_s: the most seconds of a full micro-batch: it is smaller where items take longer, which is long enough to
            see what each takes.
        typical_items: a full micro-batch, where `full_s` allows; the largest that is served is measured besides.
        runs, runs_s: a size runs so many times at most, until so many seconds are over, and the quickest counts.
        least_runs: a size runs so many times in any case: one that something else on the machine disturbed is left out.
    """

    trial_s: float = 2.0
    full_s: float = 0.1
    typical_items: int = 8
    runs: int = 5
    runs_s: float = 0.05
    least_runs: int = 2


TUNING = Tuning()


class Task(runner.Task, Protocol):
    """A loaded task; see handlers.base.BatchHandler."""

    config: Any
    engine: Engine
    model_dir: Path
    fingerprint: str | None
    overhead: Overhead
    decodes_in_threads: Any

    def sample(self) -> Payload | None: ...
    def samples(self) -> Iterable[Payload]: ...


AnyTask = TypeVar("AnyTask", bound=Task)


class Measured(NamedTuple):
    """What micro-batches took: (padded tokens, seconds), one item first; nothing where nothing was measured.

    Attributes:
        whole: with the engine to themselves.
        stream: on each stream, beside the others; empty where there are none.
    """

    whole: Seeds
    stream: Seeds


class Settled(NamedTuple):
    """What a worker serves with.

    Attributes:
        arrangement: the engine, and its streams.
        measured: what micro-batches took on them.
    """

    arrangement: Arrangement
    measured: Measured


NOTHING = Measured([], [])


def on_engine(task: AnyTask, engine: Engine) -> AnyTask:
    """Give the task on another engine; all else is shared."""
    other = copy(task)
    other.engine = engine
    return other


class Sizes:
    """The sizes of micro-batches that all candidates are measured with; the first one's time of an item decides."""

    def __init__(self, most_items: int, longest_s: float) -> None:
        self._most_items, self._longest_s = most_items, min(TUNING.full_s, longest_s)
        self._sizes: tuple[int, ...] | None = None

    def beyond(self, item_s: float) -> tuple[int, ...]:
        """Give the sizes of more than one item, in ascending order, by what one item takes."""
        if self._sizes is None:
            wanted = sorted({min(TUNING.typical_items, self._most_items), self._most_items})
            fitting = [size for size in wanted if size * item_s <= self._longest_s]
            sizes = fitting or [min(self._most_items, int(self._longest_s / item_s))]
            self._sizes = tuple(size for size in sizes if size > 1)
        return self._sizes


class Trial:
    """The candidates of one loaded task, and what is known of them."""

    def __init__(self, task: Task, window: int) -> None:
        """Look up what an earlier start measured.

        Args:
            task: with the engine that `load` gave.
            window: most requests that are in flight, the registration's batch_size.
        """
        config, engine = task.config, task.engine
        self._task = task
        self._is_adaptive = config.scheduling.mode == "adaptive"
        self._most_items = min(window, config.scheduling.max_batch_items or config.max_items)
        self._precisions = tuple(engine.precisions) if isinstance(engine, Precise) else ("",)
        self._counts = _counts(engine, config.scheduling.streams, is_adaptive=self._is_adaptive)
        self._has_choice = len(self._precisions) * len(self._counts) > 1
        kind = " ".join(engine.description.split()[:2])
        self._memory = Measurements(
            task.fingerprint,
            f"{kind} {config.scheduling.mode} {config.threads} {self._precisions} {self._counts} {self._most_items}",
            folder_of(task.model_dir),
        )
        whole = [Candidate(precision, self._counts[0]) for precision in self._precisions]
        others = [Candidate(precision, count) for precision in self._precisions for count in self._counts[1:]]
        self._known: dict[Candidate, Measured] = {}
        for candidate in (*whole, *others):
            measured = Measured(self._memory.get(f"{candidate}, alone"), self._memory.get(f"{candidate}, beside"))
            if measured.whole:
                self._known[candidate] = measured

    @property
    def engine(self) -> Engine:
        """The task's engine, in the precision that is remembered as best or else is the likeliest."""
        engine = self._task.engine
        precision = self._taken().precision if self._known else self._precisions[0]
        return engine.in_precision(precision) if isinstance(engine, Precise) else engine

    def settle(self, *, longest_s: float = inf) -> Settled:
        """Choose, and run what is chosen, so that no request pays for a first time.

        Args:
            longest_s: seconds that a micro-batch may take; larger ones are not measured.
        """
        sample = self._task.sample()
        first = Candidate(self._precisions[0], self._counts[0])
        if sample is None or not (self._known or self._has_choice or self._is_adaptive):
            return Settled(self._arranged(first), NOTHING)
        (item,) = decoded(self._task, [sample])
        if not self._known:
            return self._tried(item, Sizes(self._most_items, longest_s))
        arrangement = self._arranged(self._taken())
        for engine in (arrangement.whole, *arrangement.streams):
            run(on_engine(self._task, engine), [item])
        return self._settled(arrangement, (), is_remembered=True)

    def _tried(self, item: Any, sizes: Sizes) -> Settled:
        """Measure every precision on the whole engine, then the best one in streams, as far as time allows."""
        arrangements: dict[Candidate, Arrangement] = {}
        untried: list[Candidate] = []
        ends_s, took_s = inf, 0.0

        def attempt(candidate: Candidate) -> None:
            nonlocal ends_s, took_s
            started_s = time.perf_counter()
            if started_s + took_s > ends_s:
                untried.append(candidate)
                return
            arrangements[candidate] = self._arranged(candidate)
            self._known[candidate] = self._measured(candidate, arrangements[candidate], item, sizes)
            took_s = time.perf_counter() - started_s
            ends_s = min(ends_s, time.perf_counter() + TUNING.trial_s)

        for precision in self._precisions:
            attempt(Candidate(precision, self._counts[0]))
        precision = self._taken().precision
        for count in self._counts[1:]:
            attempt(Candidate(precision, count))
        # What there was no time for may be the best, on a machine that was busy with something else: it is tried again.
        for each, measured in () if untried else self._known.items():
            self._memory.put(f"{each}, alone", measured.whole)
            self._memory.put(f"{each}, beside", measured.stream)
        return self._settled(arrangements[self._taken()], untried, is_remembered=False)

    def _measured(self, candidate: Candidate, arrangement: Arrangement, item: Any, sizes: Sizes) -> Measured:
        """Run micro-batches of the sizes that matter on the whole engine, and on all streams side by side."""
        task = on_engine(self._task, arrangement.whole)
        same = self._known.get(Candidate(candidate.precision, 1))
        if same is not None and not getattr(task.engine, "deals_out", True):
            whole = same.whole
        else:
            run(task, [item])
            whole = measure([task], item, sizes)
        if not (arrangement.streams and self._is_adaptive):
            return Measured(whole, [])
        streams = [on_engine(self._task, stream) for stream in arrangement.streams]
        side_by_side(streams, [item])
        return Measured(whole, measure(streams, item, sizes))

    def _arranged(self, candidate: Candidate) -> Arrangement:
        engine = self._task.engine
        if isinstance(engine, Precise):
            engine = engine.in_precision(candidate.precision)
        return engine.divide(candidate.streams) if isinstance(engine, Divisible) else Arrangement(engine)

    def _taken(self) -> Candidate:
        return chosen(self._figures())

    def _figures(self) -> dict[Candidate, Figures]:
        return {each: _figures(measured, each.streams) for each, measured in self._known.items()}

    def _settled(self, arrangement: Arrangement, untried: Sequence[Candidate], *, is_remembered: bool) -> Settled:
        taken = self._taken()
        measured = self._known[taken]
        if self._has_choice:
            items = measured.whole[-1][0] // measured.whole[0][0]
            logger.warning("%s", told(self._figures(), taken, items, untried, is_remembered=is_remembered))
        return Settled(arrangement, measured)


def measure(tasks: Sequence[Task], item: Any, sizes: Sizes) -> Seeds:
    """Time micro-batches that repeat one item.

    Args:
        tasks: one on the whole engine, or one on each stream, which run side by side.
        item: decoded and prepared.
        sizes: how many items the micro-batches have that follow the one of a single item.

    Returns:
        (padded tokens, seconds) for each size.
    """
    tokens = tasks[0].cost(item).length
    item_s = quickest(tasks, [item])
    larger = [(size * tokens, quickest(tasks, [item] * size)) for size in sizes.beyond(item_s)]
    return [(tokens, item_s), *larger]


def quickest(tasks: Sequence[Task], items: Sequence[Any]) -> float:
    """Run the same micro-batch on each of these at once, a few times, and give the fewest seconds."""
    seconds: list[float] = []
    while len(seconds) < TUNING.least_runs or (len(seconds) < TUNING.runs and sum(seconds) < TUNING.runs_s):
        started_s = time.perf_counter()
        side_by_side(tasks, items)
        seconds.append(time.perf_counter() - started_s)
    return min(seconds)


def side_by_side(tasks: Sequence[Task], items: Sequence[Any]) -> None:
    """Run the same micro-batch on each of these at once."""
    if len(tasks) == 1:
        run(tasks[0], items)
        return
    with ThreadPoolExecutor(len(tasks), "trial") as pool:
        list(pool.map(lambda task: run(task, items), tasks))


def _counts(engine: Engine, wanted: int | str, *, is_adaptive: bool) -> tuple[int, ...]:
    """List the numbers of streams to choose from; classic mode has streams only where the whole engine is made so."""
    if not isinstance(engine, Divisible):
        return (1,)
    if not (is_adaptive or engine.deals_out):
        return (1,)
    return tuple(engine.stream_counts) if wanted == "auto" else (int(wanted),)


def _figures(measured: Measured, streams: int) -> Figures:
    """Tell seconds of an item alone, and an item among as many as were measured."""
    one_tokens, one_s = measured.whole[0]
    if measured.stream:
        tokens, seconds = measured.stream[-1]
        return Figures(one_s, seconds * one_tokens / tokens / streams)
    tokens, seconds = measured.whole[-1]
    return Figures(one_s, seconds * one_tokens / tokens)
