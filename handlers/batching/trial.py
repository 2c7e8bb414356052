"""How a worker finds out, as it loads, which precision and how many streams serve best, and what micro-batches take.

    engine's precisions and streams, settings -> candidates -> each one warmed up and measured -> Choice
                                                 remembered -> one item on each engine         -> Choice

What is compared is what serving does: one item on the whole engine, and full micro-batches on all streams side by
side, from `collate` to `split`. A worker has one precision and one number of streams for micro-batches of all sizes: an
answer must not depend on who else came. So the candidate with the least product of both times of an item, alone and
among many, is taken. What was measured of it is what the latency models start from. Where there is nothing to choose,
an adaptive worker measures the only candidate, and a classic one nothing.

What was measured is kept in a file, so that a worker that comes back need not measure it again. The folder is
CACHE_DIR's, where that is set; otherwise it lies in the model's own folder, which TorchServe keeps while the model is
registered. A file is read as numbers and nothing else, and one that is not what it should be is measured anew.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from importlib.metadata import version
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from handlers.engines import Arrangement, Divisible, Engine, Precise, available_threads
from handlers.pipeline import runner
from handlers.pipeline.micro_batches import Overhead
from handlers.pipeline.warm_up import decoded, run
from handlers.protocol.requests import Payload

logger = logging.getLogger(__name__)

# Seconds that all candidates may take beside the first, which warms the engine up in any case. None begins that would
# take longer than is left, by what the one before it took.
TRIAL_S = 2.0
# A full micro-batch has so many items, fewer where it would take longer than this, which is long enough to see what
# each item takes; the largest that is served is measured besides, where it is as quick.
TYPICAL_ITEMS, FULL_S = 8, 0.1
# A size runs so many times at most, until so many seconds are over, and the quickest counts; in any case a few times,
# so that one which something else on the machine disturbed is left out.
RUNS, RUNS_S, LEAST_RUNS = 5, 0.05, 2
# Share by which a product must be less than the likeliest's: a shared machine's times change by some percent.
LEAST_GAIN = 0.05
# Where processors say what they are called, on Linux.
PROCESSORS = Path("/proc/cpuinfo")

# What micro-batches took: (padded tokens, seconds), one item first.
Seeds = list[tuple[int, float]]


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


class Candidate(NamedTuple):
    """One way to run a model.

    Attributes:
        precision: the arithmetic; empty where the engine has only one.
        streams: how many micro-batches run side by side; 1 for one at a time, on the whole engine.
    """

    precision: str
    streams: int

    def __str__(self) -> str:
        words = [self.precision] if self.precision else []
        return " ".join([*words, f"in {self.streams} streams" if self.streams > 1 else "whole"])


class Figures(NamedTuple):
    """What an item took with a candidate.

    Attributes:
        alone_s: seconds of a micro-batch of one item, with the engine to itself.
        item_s: seconds an item, where full micro-batches run on all streams side by side.
    """

    alone_s: float
    item_s: float

    @property
    def product(self) -> float:
        """The measure: what is twice as fast for many outweighs what is less than twice as slow for one."""
        return self.alone_s * self.item_s


class Measured(NamedTuple):
    """What micro-batches took; nothing where nothing was measured.

    Attributes:
        whole: with the engine to themselves.
        stream: on each stream, beside the others; empty where there are none.
    """

    whole: Seeds
    stream: Seeds

    def figures(self, streams: int) -> Figures:
        """Return what an item took alone, and among as many as were measured."""
        one_tokens, one_s = self.whole[0]
        if self.stream:
            tokens, seconds = self.stream[-1]
            return Figures(one_s, seconds * one_tokens / tokens / streams)
        tokens, seconds = self.whole[-1]
        return Figures(one_s, seconds * one_tokens / tokens)


class Choice(NamedTuple):
    """What a worker serves with.

    Attributes:
        arrangement: the engine, and its streams.
        measured: what micro-batches took on them.
    """

    arrangement: Arrangement
    measured: Measured


def on_engine(task: AnyTask, engine: Engine) -> AnyTask:
    """Return the task on another engine; all else is shared."""
    other = copy(task)
    other.engine = engine
    return other


def chosen(figures: Mapping[Candidate, Figures]) -> Candidate:
    """Return the candidate whose product of both times is least, or the likeliest unless another is clearly better.

    Args:
        figures: at least one, the likeliest first.
    """
    likeliest = next(iter(figures))
    best = min(figures, key=lambda candidate: figures[candidate].product)
    limit = (1 - LEAST_GAIN) * figures[likeliest].product
    return best if figures[best].product < limit else likeliest


class Trial:
    """The candidates of one loaded task, and what is known of them."""

    def __init__(self, task: Task, window: int) -> None:
        """Look up what an earlier start measured.

        Args:
            task: with the engine that `load` returned.
            window: most requests that are in flight, the registration's batch_size.
        """
        config, engine = task.config, task.engine
        self._task = task
        self._is_adaptive = config.scheduling.mode == "adaptive"
        self._most_items = min(window, config.scheduling.max_batch_items or config.max_items)
        self._sizes: tuple[int, ...] | None = None
        precisions = tuple(engine.precisions) if isinstance(engine, Precise) else ("",)
        counts = _counts(engine, config.scheduling.streams, is_adaptive=self._is_adaptive)
        self._whole = [Candidate(precision, counts[0]) for precision in precisions]
        self._more_streams = counts[1:]
        self._has_choice = len(precisions) * len(counts) > 1
        kind = " ".join(engine.description.split()[:2])
        key = f"{kind} {config.scheduling.mode} {config.threads} {precisions} {counts} {self._most_items}"
        self._path = _path(task, key) if task.fingerprint else None
        known = _read(self._path) if self._path else {}
        candidates = [*self._whole, *(Candidate(each, count) for each in precisions for count in counts[1:])]
        self._known = {each: known[str(each)] for each in candidates if str(each) in known}

    @property
    def engine(self) -> Engine:
        """The task's engine, in the precision that is remembered as best or else is the likeliest."""
        engine = self._task.engine
        precision = (self._best() if self._known else self._whole[0]).precision
        return engine.in_precision(precision) if isinstance(engine, Precise) else engine

    def choose(self, *, longest_s: float = inf) -> Choice:
        """Choose, and run what is chosen, so that no request pays for a first time.

        Args:
            longest_s: seconds that a micro-batch may take; larger ones are not measured.
        """
        sample = self._task.sample()
        if sample is None or not (self._known or self._has_choice or self._is_adaptive):
            return Choice(self._arranged(self._whole[0]), Measured([], []))
        (item,) = decoded(self._task, [sample])
        if not self._known:
            return self._tried(item, longest_s)
        arrangement = self._arranged(self._best())
        for engine in (arrangement.whole, *arrangement.streams):
            run(on_engine(self._task, engine), [item])
        self._log((), " as an earlier start measured it")
        return Choice(arrangement, self._known[self._best()])

    def _tried(self, item: Any, longest_s: float) -> Choice:
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
            self._known[candidate] = self._measured(candidate, arrangements[candidate], item, longest_s)
            took_s = time.perf_counter() - started_s
            ends_s = min(ends_s, time.perf_counter() + TRIAL_S)

        for candidate in self._whole:
            attempt(candidate)
        precision = self._best().precision
        for count in self._more_streams:
            attempt(Candidate(precision, count))
        # What there was no time for may be the best, on a machine that was busy with something else: it is tried again.
        if self._path and not untried:
            _write(self._path, {str(each): measured for each, measured in self._known.items()})
        self._log(untried, "")
        best = self._best()
        return Choice(arrangements[best], self._known[best])

    def _measured(self, candidate: Candidate, arrangement: Arrangement, item: Any, longest_s: float) -> Measured:
        """Run micro-batches of the sizes that matter on the whole engine, and on all streams side by side."""

        def sizes(item_s: float) -> tuple[int, ...]:
            # All candidates are measured with the same; the first one's time of an item decides.
            if self._sizes is None:
                self._sizes = _sizes(self._most_items, min(FULL_S, longest_s), item_s)
            return self._sizes

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
        _side_by_side(streams, [item])
        return Measured(whole, measure(streams, item, sizes))

    def _arranged(self, candidate: Candidate) -> Arrangement:
        engine = self._task.engine
        if isinstance(engine, Precise):
            engine = engine.in_precision(candidate.precision)
        return engine.divide(candidate.streams) if isinstance(engine, Divisible) else Arrangement(engine)

    def _figures(self) -> dict[Candidate, Figures]:
        return {each: measured.figures(each.streams) for each, measured in self._known.items()}

    def _best(self) -> Candidate:
        return chosen(self._figures())

    def _log(self, untried: Sequence[Candidate], when: str) -> None:
        """Log what each candidate took, which one is taken, and why."""
        if not self._has_choice:
            return
        figures, best = self._figures(), self._best()
        parts = [f"{each} {1e3 * took.alone_s:.2f} and {1e3 * took.item_s:.2f}" for each, took in figures.items()]
        why = "the others are not clearly faster" if best == next(iter(figures)) else "the least product of both"
        left_out = f"; no time for {', '.join(map(str, untried))}" if untried else ""
        whole = self._known[best].whole
        many = whole[-1][0] // whole[0][0]
        logger.warning(
            "Runs %s: ms an item alone and among %d%s: %s; %s%s", best, many, when, ", ".join(parts), why, left_out
        )


def _counts(engine: Engine, wanted: int | str, *, is_adaptive: bool) -> tuple[int, ...]:
    """List the numbers of streams to choose from; classic mode has streams only where the whole engine is made so."""
    if not isinstance(engine, Divisible) or not (is_adaptive or engine.deals_out):
        return (1,)
    return tuple(engine.stream_counts) if wanted == "auto" else (int(wanted),)


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(tasks: Sequence[Task], item: Any, sizes: Callable[[float], Sequence[int]]) -> Seeds:
    """Time micro-batches that repeat one item.

    Args:
        tasks: one on the whole engine, or one on each stream, which run side by side.
        item: decoded and prepared.
        sizes: returns how many items the micro-batches have that follow the one of a single item, which took so long.

    Returns:
        (padded tokens, seconds) for each size.
    """
    tokens = tasks[0].cost(item).length
    item_s = _quickest(tasks, [item])
    return [(tokens, item_s), *((size * tokens, _quickest(tasks, [item] * size)) for size in sizes(item_s))]


def _sizes(most_items: int, longest_s: float, item_s: float) -> tuple[int, ...]:
    """Return the sizes of more than one item to measure, in ascending order, by what one item takes."""
    wanted = sorted({min(TYPICAL_ITEMS, most_items), most_items})
    fitting = [size for size in wanted if size * item_s <= longest_s]
    return tuple(size for size in fitting or [min(most_items, int(longest_s / item_s))] if size > 1)


def _quickest(tasks: Sequence[Task], items: Sequence[Any]) -> float:
    """Run the same micro-batch on each of these at once, a few times, and return the fewest seconds."""
    seconds: list[float] = []
    while len(seconds) < LEAST_RUNS or (len(seconds) < RUNS and sum(seconds) < RUNS_S):
        started_s = time.perf_counter()
        _side_by_side(tasks, items)
        seconds.append(time.perf_counter() - started_s)
    return min(seconds)


def _side_by_side(tasks: Sequence[Task], items: Sequence[Any]) -> None:
    """Run the same micro-batch on each of these at once."""
    if len(tasks) == 1:
        run(tasks[0], items)
        return
    with ThreadPoolExecutor(len(tasks), "trial") as pool:
        list(pool.map(lambda task: run(task, items), tasks))


# -- remembering -------------------------------------------------------------------------------------------------------


def _path(task: Task, key: str) -> Path:
    """Return the file for this archive, processor, engine and settings."""
    identity = [task.fingerprint, key, _processor(), available_threads(0), *map(version, ("openvino", "torch"))]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    configured = os.environ.get("CACHE_DIR")
    return (Path(configured) if configured else task.model_dir / ".cache") / f"measurements-{name}.json"


def _processor() -> str:
    try:
        lines = PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    # Processors of one name differ by what a virtual machine shows of them.
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _write(path: Path, known: Mapping[str, Measured]) -> None:
    """Remember what was measured; a folder that cannot be written to forgets it."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: another server may read it now.
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(known), encoding="utf-8")
        own.replace(path)


def _read(path: Path) -> dict[str, Measured]:
    try:
        known = json.loads(path.read_bytes())
        read = {name: Measured([*map(_seed, whole)], [*map(_seed, stream)]) for name, (whole, stream) in known.items()}
        return {name: measured for name, measured in read.items() if measured.whole}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _seed(value: Any) -> tuple[int, float]:
    tokens, seconds = value
    if type(tokens) is not int or type(seconds) is not float or tokens < 1 or not (isfinite(seconds) and seconds > 0):
        raise ValueError("not a measure")
    return tokens, seconds
