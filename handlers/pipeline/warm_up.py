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
from handlers.scheduling.batch_selection import Limits
from handlers.scheduling.latency_model import LatencyModel

# OpenVINO takes 4 to 6 ms more for a shape it has not met, and MiniLM meets some two hundred of them on each lane.
MEETING_S = 3.0


class Lane(NamedTuple):
    """A task on its engine or a part of it, and what its passes may hold."""

    task: Task
    limits: Limits


def run(task: Task, items: Sequence[Any]) -> None:
    """A pass of these, from collate to split."""
    task.split(task.forward(task.collate(items), items), items)


def decoded(task: Task, payloads: Iterable[Payload]) -> list[Any]:
    """Items of the payloads that the model takes."""
    prepared = task.prepare([task.decode(payload) for payload in payloads])
    return [item for item in prepared if not isinstance(item, ItemError)]


def measure(task: Task, sample: Payload, sizes: Iterable[int]) -> LatencyModel:
    """What passes of so many samples take."""
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
    return LatencyModel(seeds)


def meet(lanes: Sequence[Lane], samples: Iterable[Payload], seconds: float = MEETING_S) -> None:
    """Run passes of every sample, of one, two and more of it, as many as fit; all lanes at once, small passes first.

    Args:
        lanes: at least one.
        samples: one of each length.
        seconds: after which no more passes start.
    """
    items = decoded(lanes[0].task, samples)
    ends_s = time.perf_counter() + seconds

    def passes(lane: Lane) -> None:
        for size in count(1):
            tokens = lane.limits.max_tokens // size
            fitting = [item for item in items if lane.task.cost(item).length <= tokens]
            if not fitting or size > lane.limits.max_items:
                return
            for item in fitting:
                if time.perf_counter() > ends_s:
                    return
                run(lane.task, [item] * size)

    with ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(passes, lanes))
