"""Run a model before its first request, so that no request pays for a first time.

measure   runs micro-batches of the sizes that matter: it prepares the engine for them, and says how long they take
meet      runs micro-batches of every likely size, for some seconds: an engine prepares itself for each shape it meets

OpenVINO takes 4 to 6 ms more for a shape that it has not met, and MiniLM meets some two hundred of them on each stream:
that is 1.2 s beside the runs themselves.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple

from handlers.errors import ItemError
from handlers.pipeline.runner import Task
from handlers.protocol.requests import Payload

# `measure` runs a micro-batch so many times after the first time, and the quickest counts: two are enough to leave out
# one that something else on the machine disturbed.
TIMED_RUNS = 2


class Allowed(NamedTuple):
    """A task on its engine or on a stream of it, and what its micro-batches may hold there.

    Attributes:
        task: the hooks, with that engine.
        max_items: the most items of a micro-batch.
        max_tokens: the most padded tokens of a micro-batch.
    """

    task: Task
    max_items: int
    max_tokens: int


def run(task: Task, items: Sequence[Any]) -> None:
    """Run one micro-batch of these items, from `collate` to `split`."""
    task.split(task.forward(task.collate(items), items), items)


def decoded(task: Task, payloads: Iterable[Payload]) -> list[Any]:
    """Decode and prepare payloads; those that the model does not take are left out."""
    prepared = task.prepare([task.decode(payload) for payload in payloads])
    return [item for item in prepared if not isinstance(item, ItemError)]


def measure(task: Task, sample: Payload, sizes: Iterable[int]) -> list[tuple[int, float]]:
    """Run micro-batches that repeat one sample, and time them.

    Args:
        task: the hooks, with the engine that is measured.
        sample: what a client might send.
        sizes: how many items each micro-batch has.

    Returns:
        (padded tokens, seconds) for each size, smallest first.
    """
    (item,) = decoded(task, [sample])
    tokens = task.cost(item).length
    seeds = []
    for size in sorted(set(sizes)):
        # The first micro-batch of a size prepares the engine for it; those after it show what it takes.
        run(task, [item] * size)
        seconds = []
        for _ in range(TIMED_RUNS):
            started = time.perf_counter()
            run(task, [item] * size)
            seconds.append(time.perf_counter() - started)
        seeds.append((size * tokens, min(seconds)))
    return seeds


def meet(streams: Sequence[Allowed], samples: Iterable[Payload], seconds: float) -> None:
    """Run micro-batches of every sample: of one, of two and so on, as many as fit; all streams at once.

    Args:
        streams: at least one.
        samples: one of each length that the engine prepares itself for.
        seconds: how long to go on; then no more micro-batches start.
    """
    items = decoded(streams[0].task, samples)
    ends_s = time.perf_counter() + seconds

    def run_all(stream: Allowed) -> None:
        for size in count(1):
            tokens = stream.max_tokens // size
            fitting = [item for item in items if stream.task.cost(item).length <= tokens]
            if not fitting or size > stream.max_items:
                return
            for item in fitting:
                if time.perf_counter() > ends_s:
                    return
                run(stream.task, [item] * size)

    with ThreadPoolExecutor(len(streams)) as pool:
        list(pool.map(run_all, streams))
