"""Run a model before its first request, so that no request pays for a first time.

prepare     runs micro-batches of one item and of the most items, as a worker loads
Rehearsal   has micro-batches of every other likely size, one at a time, for the engine's threads while no request waits

OpenVINO takes 4 to 6 ms more for a shape that it has not met, and MiniLM meets some two hundred of them on each stream:
that is 1.2 s beside the runs themselves, too long for a worker that starts again after a crash.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from handlers.errors import ItemError
from handlers.pipeline.task import Task
from handlers.protocol.requests import Payload

# Seconds that `prepare` has for its largest micro-batch.
PREPARED_S = 0.25


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


def prepare(task: Task, sample: Payload | None, most_items: int) -> None:
    """Run a micro-batch of one item, and one of the most items where that is quick; without a sample, none.

    The first run takes long, since an engine packs its weights for the processor. A new size adds some milliseconds,
    which are not worth a run of seconds.
    """
    if sample is None:
        return
    (item,) = decoded(task, [sample])
    run(task, [item])
    started_s = time.perf_counter()
    run(task, [item])
    if most_items > 1 and most_items * (time.perf_counter() - started_s) <= PREPARED_S:
        run(task, [item] * most_items)


class Rehearsal:
    """Micro-batches of every sample: of one, of two and so on, as many as fit, within a time."""

    def __init__(self, allowed: Sequence[Allowed], samples: Callable[[], Iterable[Payload]], seconds: float) -> None:
        """Prepare the steps; nothing runs yet.

        Args:
            allowed: where they run and what they may hold, one after the other.
            samples: returns one of each length that an engine prepares itself for; called with the first step.
            seconds: the time for all steps.
        """
        self._steps = (step for each in allowed for step in _steps(each, samples))
        self._left_s = seconds

    def next_step(self) -> Step | None:
        """Return the next micro-batch; None where there is none, or no time left for it."""
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
