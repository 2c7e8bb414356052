"""CUDA graphs of a module: a GPU starts the kernels of a micro-batch at once, and not one by one from Python.

examples, rows -> rungs, the largest first -> CudaRecorder -> compared with the eager module
a micro-batch  -> the smallest rung -> Layout: one block of inputs -> replay -> one block of outputs -> copies

Static memory belongs to one replay at a time, hence a lock. A graph is never destroyed: that may free the workspace of
another one (pytorch#193402). All share one pool of memory, so outputs are copied before the next replay.
"""

import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from handlers.engines import Arrays, Budget, Outputs, Shapes, key_of, ladder, round_up
from handlers.errors import OutOfMemory

logger = logging.getLogger(__name__)

# Least share of a run's time that passes until its last kernel is started; below, a graph gains nothing.
LEAST_STARTING = 0.5
# Largest difference between graph and eager module, as a share of the largest value: kernels may add in another order.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
ALIGNMENT = 256  # kernels read up to so many bytes at once
MOST_PINNED = 2**25  # larger copies are not worth the pinned memory, which the process keeps
KEPT: list[object] = []  # graphs of engines that are no longer used, too
RECORDED = "recorded"

Run = Callable[[], torch.Tensor]


class CudaRecorder:
    """Records on one stream of a GPU, with one pool of memory; tests replace it on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def using(self) -> AbstractContextManager[object]:
        """Run what follows in the order of the graphs, after tensors that the caller has made."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def measure(self, run: Run) -> tuple[float, float, int]:
        """Run twice; return the second run's seconds until its last kernel is started, and until its end, and bytes."""
        run()
        self._stream.synchronize()
        torch.cuda.reset_peak_memory_stats(self._device)
        before, started_s = torch.cuda.memory_allocated(self._device), time.perf_counter()
        run()
        starting_s = time.perf_counter() - started_s
        self._stream.synchronize()
        needed = torch.cuda.max_memory_allocated(self._device) - before
        return starting_s, time.perf_counter() - started_s, needed

    def record(self, run: Run) -> tuple[Callable[[], None], torch.Tensor]:
        """Return a function that repeats a run, and the memory that contains the output afterwards."""
        graph = torch.cuda.CUDAGraph()
        KEPT.append(graph)
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            output = run()
        return graph.replay, output


def make_recorder(device: torch.device) -> CudaRecorder | None:
    return CudaRecorder(device) if device.type == "cuda" else None


class Layout:
    """The places of a micro-batch's arrays in one block of bytes, so that one copy moves them all."""

    def __init__(self, example: Arrays, rows: int) -> None:
        """Make room for rows of the shapes and dtypes of an example."""
        self._places: dict[str, tuple[slice, torch.dtype, tuple[int, ...]]] = {}
        self.size = 0
        for name, array in example.items():
            shape, dtype = (rows, *array.shape[1:]), torch.as_tensor(array).dtype
            self._places[name] = slice(self.size, self.size + prod(shape) * dtype.itemsize), dtype, shape
            self.size += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT

    def write(self, arrays: Arrays, block: torch.Tensor) -> None:
        """Write arrays into a block, (size,) uint8; padding repeats the first row, which any model accepts."""
        own = _host_memory(block.shape, block)
        for name, space in self.tensors(own).items():
            rows = torch.as_tensor(arrays[name])
            space[: len(rows)], space[len(rows) :] = rows, rows[:1]
        block.copy_(own, non_blocking=True)

    def tensors(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tensors in a block, which share its memory."""
        return {name: block[place].view(dtype).view(shape) for name, (place, dtype, shape) in self._places.items()}


def _host_memory(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    is_pinned = like.is_cuda and like.itemsize * prod(shape) <= MOST_PINNED
    return torch.empty(tuple(shape), dtype=like.dtype, pin_memory=is_pinned)


def _to_host(tensor: torch.Tensor) -> Any:
    own = _host_memory(tensor.shape, tensor).copy_(tensor, non_blocking=True)
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return own.numpy()


class Rung(NamedTuple):
    """One graph and its static memory: outputs are side by side, (B, W) float32."""

    layout: Layout
    block: torch.Tensor
    replay: Callable[[], None]
    packed: torch.Tensor
    shapes: Mapping[str, tuple[int, ...]]  # of a row of each output
    module: Run  # the module itself on the block

    def run(self, arrays: Arrays, rows: int) -> Outputs:
        self.layout.write(arrays, self.block)
        self.replay()
        array = _to_host(self.packed[:rows])
        ends = np.cumsum([prod(shape) for shape in self.shapes.values()])[:-1]
        parts = np.split(array, ends, 1)
        return {name: part.reshape(rows, *self.shapes[name]) for name, part in zip(self.shapes, parts, strict=True)}


class Graphs:
    def __init__(self, recorder: Any, device: torch.device, dtype: torch.dtype, run: Any, errors: Any) -> None:
        """`run` turns tensors into results, both by name; `errors` is the context that reports a lack of memory."""
        self._recorder, self._device, self._run, self._errors = recorder, device, run, errors
        self._tolerance, self._lock = TOLERANCES.get(dtype, 1e-4), threading.Lock()
        self._rungs: dict[tuple[object, ...], dict[int, Rung]] = {}
        self._pool_bytes = 0  # of the run that needed most: later graphs use its memory again

    def run(self, arrays: Arrays) -> Outputs | None:
        """Run a micro-batch on the smallest rung; None if there is none."""
        rows, *others = {len(array) for array in arrays.values()}
        rungs = self._rungs.get(key_of(arrays), {})
        rung = rungs.get(round_up(rows, sorted(rungs)))
        if rung is None or others:
            return None
        with self._lock, self._recorder.using():
            return rung.run(arrays, rows)

    def record(self, examples: Sequence[Arrays], budget: Budget) -> Shapes:
        """Record what the budget allows, and log it in one line; see Recordable."""
        started_s, free = time.perf_counter(), self._recorder.free_bytes()
        counts, recorded = Counter[str](), list[tuple[int, Arrays]]()
        gc.collect()
        gc.disable()  # a collection may free memory of the GPU, which ends a recording
        try:
            with self._recorder.using():
                for rows, example in ladder(examples, budget.max_items, budget.max_tokens):
                    fate = "over the budget of time"
                    if time.perf_counter() - started_s < budget.seconds:
                        most_bytes = budget.bytes - (free - self._recorder.free_bytes())
                        fate = self._record(rows, example, most_bytes)
                    counts[fate] += 1
                    if fate == RECORDED:
                        recorded.append((rows, example))
                for rows, example in recorded:
                    with self._errors(self._device):
                        self._check(rows, example)
        finally:
            gc.enable()
        words = ", ".join(f"{count} {fate}" for fate, count in counts.items())
        gib = (free - self._recorder.free_bytes()) / 2**30
        logger.info("CUDA graphs: %s; %.1f s, %.2f GiB", words, time.perf_counter() - started_s, gib)
        return [(rows, *next(iter(example.values())).shape[1:]) for rows, example in recorded]

    def _record(self, rows: int, example: Arrays, most_bytes: float) -> str:
        """Record one rung, and return its fate."""
        layout, shapes = Layout(example, rows), dict[str, tuple[int, ...]]()

        def run() -> torch.Tensor:
            results = self._run(layout.tensors(block))
            if any(result.shape[:1] != (rows,) for result in results.values()):
                raise ValueError("an output has another number of rows than the inputs")
            shapes.update({name: tuple(result.shape[1:]) for name, result in results.items()})
            return torch.cat([result.float().reshape(rows, -1) for result in results.values()], 1)

        try:
            with self._errors(self._device):
                block = torch.empty(layout.size, dtype=torch.uint8, device=self._device)
                layout.write(example, block)
                starting_s, seconds, needed = self._recorder.measure(run)
                if starting_s < LEAST_STARTING * seconds:
                    return "gain nothing"
                if needed - self._pool_bytes > most_bytes:
                    return "over the budget of memory"
                replay, packed = self._recorder.record(run)
        except OutOfMemory:
            return "without memory"
        self._pool_bytes = max(self._pool_bytes, needed)
        self._rungs.setdefault(key_of(example), {})[rows] = Rung(layout, block, replay, packed, shapes, run)
        return RECORDED

    def _check(self, rows: int, example: Arrays) -> None:
        """Compare a rung with the module, when all are recorded: a later run may replace memory that a graph reads.

        The inputs differ from the recorded ones: a graph must not repeat what the module found in these.
        """
        rung = self._rungs[key_of(example)][rows]
        tensors: Any = {name: torch.as_tensor(array) for name, array in example.items()}
        rung.layout.write({name: each.flip(1) if each.ndim > 1 else each for name, each in tensors.items()}, rung.block)
        wanted = _to_host(rung.module())
        rung.replay()
        found = _to_host(rung.packed)
        scale = float(np.nanmax(np.abs(wanted), initial=0.0)) or 1.0
        if not np.allclose(found, wanted, rtol=0, atol=self._tolerance * scale, equal_nan=True):
            raise ValueError("a graph and the eager module have different outputs")
