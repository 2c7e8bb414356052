"""Run a model before its first request, so that no request pays for a first time."""

import gc
import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from handlers.engines import Device
from handlers.errors import ItemError
from handlers.pipeline.task import Task, decode, samples_of
from handlers.protocol.requests import Payload

LONGEST_RUN_S = 0.25  # seconds that `prepare` may spend on its largest micro-batch


def run(task: Task, items: Sequence[object]) -> None:
    task.split(task.forward(task.collate(items), items), items)


def decode_items(task: Task, payloads: Iterable[Payload]) -> list[Any]:
    """Decode and prepare payloads, and leave out the items that `prepare` rejects."""
    prepared = task.prepare([decode(task, payload) for payload in payloads])
    return [item for item in prepared if not isinstance(item, ItemError)]


def prepare(task: Task, most_items: int) -> None:
    """Run a micro-batch of one item, then of the most if quick: first runs pack weights, sizes add milliseconds."""
    if not (samples := samples_of(task)):
        return
    (item,) = decode_items(task, samples[:1])
    run(task, [item])
    started_s = time.perf_counter()
    run(task, [item])
    if most_items > 1 and most_items * (time.perf_counter() - started_s) <= LONGEST_RUN_S:
        run(task, [item] * most_items)


def measure_change(task: Task) -> float:
    """Return the largest change of an output by the task's precision, as a share of the largest fp32 value."""
    exact, changes = copy(task), [0.0]
    exact.config = replace(task.config, precision="fp32")
    exact.engine = exact.load()
    for item in decode_items(task, samples_of(task)):
        wanted = exact.forward(exact.collate([item]), [item])
        found = task.forward(task.collate([item]), [item])
        for name, array in wanted.items():
            if np.issubdtype(array.dtype, np.floating):
                scale = float(np.abs(array).max()) or 1.0
                changes.append(float(np.abs(found[name] - array).max()) / scale)
    return float(np.max(changes))


def free_memory(device: Device) -> None:
    """Return the memory of models that are no longer used to a GPU, whose other workers may need it."""
    import torch  # noqa: PLC0415 - a worker on OpenVINO has no GPU

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
