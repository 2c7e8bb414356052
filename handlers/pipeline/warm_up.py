"""What a model does before its first request, so that none pays for a first time.

measure   passes at the sizes that matter: prepares the engine, and says what they take
meet      passes at every size that is likely, within a time: an engine prepares itself for each shape it meets
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple

from handlers.errors import ItemError
from handlers.pipeline.runner import Task
from handlers.protocol.requests import Payload


class Allowed(NamedTuple):
    """A task on its engine or on a stream of it, and what its micro-batches may hold there."""

    task: Task
    max_items: int
    max_tokens: int


def run(task: Task, items: Sequence[Any]) -> None:
    """A pass of these, from collate to split."""
    task.split(task.forward(task.collate(items), items), items)


def decoded(task: Task, payloads: Iterable[Payload]) -> list[Any]:
    """Items of the payloads that the model takes."""
    prepared = task.prepare([task.decode(payload) for payload in payloads])
    return [item for item in prepared if not isinstance(item, ItemError)]


def measure(task: Task, sample: Payload, sizes: Iterable[int]) -> list[tuple[int, float]]:
    """Run micro-batches of one sample, repeated.

    Args:
        task: on the engine that is measured.
        sample: what a client might send.
        sizes: items of each micro-batch.

    Returns:
        (padded tokens, seconds) of each size, smallest first.
    """
    (item,) = decoded(task, [sample])
    tokens = task.cost(item).length
    seeds = []
    for size in sorted(set(sizes)):
        seconds = []
        # The first pass of a size prepares the engine for it; the quicker of the next two shows what it takes.
        for _ in range(3):
            started = time.perf_counter()
            run(task, [item] * size)
            seconds.append(time.perf_counter() - started)
        seeds.append((size * tokens, min(seconds[1:])))
    return seeds


def meet(streams: Sequence[Allowed], samples: Iterable[Payload], seconds: float) -> None:
    """Run passes of every sample, of one, two and more of it, as many as fit; all streams at once, small ones first.

    Args:
        streams: at least one.
        samples: one of each length.
        seconds: after which no more passes start.
    """
    items = decoded(streams[0].task, samples)
    ends_s = time.perf_counter() + seconds

    def passes(stream: Allowed) -> None:
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
        list(pool.map(passes, streams))
