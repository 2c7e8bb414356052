"""CUDA graphs of a module: a GPU starts the kernels of a micro-batch at once, and not one by one from Python.

examples, rows -> rungs, the largest first -> Recorder.measure -> Recorder.record -> compared with the eager module
a micro-batch  -> the smallest rung -> its block of inputs -> replay -> its block of outputs -> copies

Static memory belongs to one replay at a time, hence a lock. A graph is never destroyed: that may free the workspace of
another one (pytorch#193402). All share one pool of memory, so outputs are copied before the next replay.
"""

import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from handlers.engines import Arrays, Budget, Outputs, Shapes
from handlers.engines.blocks import Layout, Sides, to_device, to_host
from handlers.engines.device_errors import memory_errors
from handlers.engines.ladder import round_up
from handlers.errors import OutOfMemory

logger = logging.getLogger(__name__)

# Least share of a run's time that passes until its last kernel is started; below, a graph gains nothing.
LEAST_STARTING = 0.5
# Largest difference between graph and eager module, as a share of the largest value: kernels may add in another order.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
# Graphs of engines that are no longer used.
KEPT: list[Any] = []

Run = Callable[[], torch.Tensor]


class Effort(NamedTuple):
    """What one eager run takes."""

    starting_s: float  # until its last kernel is started
    seconds: float
    bytes: int  # of the memory that it needs at once


class Recorder(Protocol):
    """Records on one device; the CPU of the tests has another one."""

    def using(self) -> AbstractContextManager[Any]:
        """Run what follows in the order of the graphs."""

    def free_bytes(self) -> int:
        """Return the free memory of the device."""

    def measure(self, run: Run) -> Effort:
        """Run eagerly, twice; the second run counts."""

    def record(self, run: Run) -> tuple[Callable[[], None], torch.Tensor]:
        """Return a function that repeats a run, and the memory that contains the output afterwards."""


class CudaRecorder:
    """Records on one stream of a GPU, with one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def using(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def measure(self, run: Run) -> Effort:
        run()
        self._stream.synchronize()
        torch.cuda.reset_peak_memory_stats(self._device)
        before, started_s = torch.cuda.memory_allocated(self._device), time.perf_counter()
        run()
        starting_s = time.perf_counter() - started_s
        self._stream.synchronize()
        needed = torch.cuda.max_memory_allocated(self._device) - before
        return Effort(starting_s, time.perf_counter() - started_s, needed)

    def record(self, run: Run) -> tuple[Callable[[], None], torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        KEPT.append(graph)
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            output = run()
        return graph.replay, output


def make_recorder(device: torch.device) -> Recorder | None:
    """Return the recorder of a device; None for a CPU."""
    return CudaRecorder(device) if device.type == "cuda" else None


class Rung(NamedTuple):
    """One graph and its static memory."""

    layout: Layout
    block: torch.Tensor
    replay: Callable[[], None]
    sides: Sides


def _vary(arrays: Arrays) -> Arrays:
    return {name: np.flip(array, 1) if array.ndim > 1 else array for name, array in arrays.items()}


def _key(arrays: Arrays) -> tuple[Any, ...]:
    return tuple((name, array.shape[1:], array.dtype) for name, array in arrays.items())


class Graphs:
    """The graphs of one module."""

    def __init__(self, recorder: Recorder, device: torch.device, dtype: torch.dtype, run: Any) -> None:
        """`run` turns tensors by name into results by name, on the device; `dtype` is the precision."""
        self._recorder, self._device, self._tolerance, self._run = recorder, device, TOLERANCES.get(dtype, 1e-4), run
        self._lock = threading.Lock()
        self._rungs: dict[tuple[Any, ...], dict[int, Rung]] = {}
        # Of the run that needed most: later graphs use its memory again.
        self._pool_bytes = 0

    def run(self, arrays: Arrays) -> Outputs | None:
        """Run a micro-batch on the smallest rung; None if there is none."""
        rows, *others = {len(array) for array in arrays.values()}
        rungs = self._rungs.get(_key(arrays), {})
        rung = rungs.get(round_up(rows, sorted(rungs)))
        return None if rung is None or others else self._replay(rung, arrays, rows)

    def _replay(self, rung: Rung, arrays: Arrays, rows: int) -> Outputs:
        with self._lock, self._recorder.using():
            to_device(rung.layout, arrays, rung.block)
            rung.replay()
            return rung.sides.read(rows)

    def record(self, examples: Sequence[tuple[Arrays, Sequence[int]]], budget: Budget) -> Shapes:
        """Record what the budget allows, and log it in one line; see Recordable."""
        started_s, free = time.perf_counter(), self._recorder.free_bytes()
        ladder = {(_key(example), rows): example for example, sizes in examples for rows in sizes}
        counts, shapes, used = Counter[str](), list[tuple[int, ...]](), 0
        largest_first = sorted(
            ladder.items(), key=lambda rung: -rung[0][1] * sum(array.nbytes for array in rung[1].values())
        )
        with _no_collection(), self._recorder.using():
            for (key, rows), example in largest_first:
                seconds, used = time.perf_counter() - started_s, max(used, free - self._recorder.free_bytes())
                fate = "over the budget of time"
                if seconds < budget.seconds:
                    fate = self._record(key, rows, example, budget.bytes - used)
                if not fate:
                    shapes.append((rows, *next(iter(example.values())).shape[1:]))
                counts[fate or "recorded"] += 1
        gib = max(used, free - self._recorder.free_bytes()) / 2**30
        found = ", ".join(f"{count} {fate}" for fate, count in counts.items())
        logger.info("CUDA graphs: %s; %.1f s, %.2f GiB", found, time.perf_counter() - started_s, gib)
        return shapes

    def _record(self, key: tuple[Any, ...], rows: int, example: Arrays, most_bytes: float) -> str:
        """Record one rung and compare it; return the reason if it stays eager."""
        layout = Layout(example, rows)
        block = torch.empty(layout.size, dtype=torch.uint8, device=self._device)
        found: list[Sides] = []

        def run() -> torch.Tensor:
            sides = Sides.of(self._run(layout.tensors(block)), rows)
            if sides is None:
                raise ValueError("an output has another number of rows than the inputs")
            found.append(sides)
            return sides.packed

        try:
            with memory_errors(self._device):
                to_device(layout, example, block)
                effort = self._recorder.measure(run)
                if effort.starting_s < LEAST_STARTING * effort.seconds:
                    return "gain nothing"
                if effort.bytes - self._pool_bytes > most_bytes:
                    return "over the budget of memory"
                replay, packed = self._recorder.record(run)
        except OutOfMemory:
            return "without memory"
        self._pool_bytes = max(self._pool_bytes, effort.bytes)
        rung = Rung(layout, block, replay, found[-1]._replace(packed=packed))
        # Other inputs than those that were recorded: a graph must not repeat what the module found in these.
        to_device(layout, _vary(example), block)
        wanted = to_host(run()).numpy()
        replay()
        self._check(to_host(packed).numpy(), wanted)
        self._rungs.setdefault(key, {})[rows] = rung
        return ""

    def _check(self, found: Any, wanted: Any) -> None:
        scale = float(np.nanmax(np.abs(wanted), initial=0.0)) or 1.0
        if not np.allclose(found, wanted, rtol=0, atol=self._tolerance * scale, equal_nan=True):
            raise ValueError("a graph and the eager module have different outputs")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from freeing a GPU's memory while a graph is recorded."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
