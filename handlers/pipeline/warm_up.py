"""Run a model before its first request, so that no request pays for a first time.

prepare     runs a micro-batch of each size that matters, once: it prepares the engine for them
measure     runs micro-batches of the sizes that matter: it prepares the engine likewise, and says how long they take
Rehearsal   has micro-batches of every other likely size, one at a time, for whoever has time: an engine prepares itself
            for each shape it meets

OpenVINO takes 4 to 6 ms more for a shape that it has not met, and MiniLM meets some two hundred of them on each stream:
that is 1.2 s beside the runs themselves. A worker that is back after a crash has no such time before its next request.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from handlers.errors import ItemError
from handlers.pipeline.runner import Task
from handlers.protocol.requests import Payload

# `measure` runs a micro-batch so many times after the first time, and the quickest counts: two are enough to leave out
# one that something else on the machine disturbed.
TIMED_RUNS = 2


class Step(NamedTuple):
    """One micro-batch of a rehearsal.

    Attributes:
        run: runs it.
        tokens: how many they are together, padded.
        is_wide: whether it takes the whole engine.
    """

    run: Callable[[], None]
    tokens: int
    is_wide: bool


class Allowed(NamedTuple):
    """A task on its engine or on a stream of it, and what its micro-batches may hold there.

    Attributes:
        task: the hooks, with that engine.
        max_items: the most items of a micro-batch.
        max_tokens: the most padded tokens of a micro-batch.
        is_wide: whether its engine is the whole one.
    """

    task: Task
    max_items: int
    max_tokens: int
    is_wide: bool


def run(task: Task, items: Sequence[Any]) -> None:
    """Run one micro-batch of these items, from `collate` to `split`."""
    task.split(task.forward(task.collate(items), items), items)


def decoded(task: Task, payloads: Iterable[Payload]) -> list[Any]:
    """Decode and prepare payloads; those that the model does not take are left out."""
    prepared = task.prepare([task.decode(payload) for payload in payloads])
    return [item for item in prepared if not isinstance(item, ItemError)]


def result(task: Task, item: Any) -> Any:
    """Run one decoded item alone, and give its result."""
    (outcome,) = task.split(task.forward(task.collate([item]), [item]), [item])
    return outcome


def prepare(task: Task, sample: Payload | None, sizes: Iterable[int]) -> None:
    """Run micro-batches that repeat one sample, once for each size; without a sample, none."""
    if sample is None:
        return
    (item,) = decoded(task, [sample])
    for size in sorted(set(sizes)):
        run(task, [item] * size)


def measure(
    task: Task, sample: Payload | None, sizes: Iterable[int], longest_s: float = float("inf")
) -> list[tuple[int, float]]:
    """Run micro-batches that repeat one sample, and time them.

    Args:
        task: the hooks, with the engine that is measured.
        sample: what a client might send; None where nobody can say.
        sizes: how many items each micro-batch has.
        longest_s: a size that should take longer, as the one before it tells, is left out, and all larger ones.

    Returns:
        (padded tokens, seconds) for each size, smallest first; the smallest is always among them. Nothing without a
        sample.
    """
    if sample is None:
        return []
    (item,) = decoded(task, [sample])
    tokens = task.cost(item).length
    seeds: list[tuple[int, float]] = []
    for size in sorted(set(sizes)):
        if seeds and seeds[-1][1] * size * tokens / seeds[-1][0] > longest_s:
            break
        # The first micro-batch of a size prepares the engine for it; those after it show what it takes.
        run(task, [item] * size)
        seconds = []
        for _ in range(TIMED_RUNS):
            started = time.perf_counter()
            run(task, [item] * size)
            seconds.append(time.perf_counter() - started)
        seeds.append((size * tokens, min(seconds)))
    return seeds


class Rehearsal:
    """Micro-batches of every sample: of one, of two and so on, as many as fit; for so many seconds altogether."""

    def __init__(self, allowed: Sequence[Allowed], samples: Callable[[], Iterable[Payload]], seconds: float) -> None:
        """Run nothing yet.

        Args:
            allowed: where they run and what they may hold, one after the other.
            samples: gives one of each length that an engine prepares itself for; called with the first step.
            seconds: what all steps may take; then there are no more.
        """
        self._steps = (step for each in allowed for step in _steps(each, samples))
        self._left_s = seconds

    def next_step(self) -> Step | None:
        """Give the next micro-batch; None where there is none, or no time left for it."""
        return next(self._steps, None) if self._left_s > 0 else None

    def ended(self, seconds: float) -> None:
        """Note that a step took so long."""
        self._left_s -= seconds


def _steps(allowed: Allowed, samples: Callable[[], Iterable[Payload]]) -> Iterator[Step]:
    task = allowed.task
    items = [(item, task.cost(item).length) for item in decoded(task, samples())]
    for size in count(1):
        fitting = [(item, size * length) for item, length in items if size * length <= allowed.max_tokens]
        if not fitting or size > allowed.max_items:
            return
        for item, tokens in fitting:
            yield Step(partial(run, task, [item] * size), tokens, allowed.is_wide)
