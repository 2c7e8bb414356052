"""Engines run micro-batches: one protocol, one module per library.

    named arrays of a micro-batch -> Engine.run -> named arrays, whose first axis is the same

An engine raises `OutOfMemory` if the micro-batch is too large for it; any other exception is a bug.
"""

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Array
from handlers.engines.cores import usable_cores

logger = logging.getLogger(__name__)

# The message of a failed allocation contains one of these, in OpenVINO and in ONNX Runtime.
ALLOCATION_FAILURES = ("alloc", "out of memory")

# The message of values that ONNX Runtime or PyTorch rejects.
REJECTED = "The model cannot compute with these values or sizes, such as an index outside of its table."

EXPORTED, SCRIPTED = "model.pt2", "model.pt"  # the files of an archive that contain a program of PyTorch


class _Cpu(str):
    """A name that torch accepts as a device."""

    type, index = "cpu", None  # type: ignore[assignment]


Device = Any  # a torch.device, or CPU, which needs no torch
CPU = _Cpu("cpu")

Arrays = Mapping[str, Array]
Outputs = Mapping[str, Array]


Shapes = Sequence[tuple[int, ...]]


class Budget(NamedTuple):
    """Limits of recording CUDA graphs."""

    seconds: float
    bytes: float
    max_items: int  # of a micro-batch
    max_tokens: int | None = None  # padded


class Engine(Protocol):
    """Runs one micro-batch at a time."""

    @property
    def description(self) -> str:
        """Library, device and precision, for the log: "openvino cpu bf16"."""

    @property
    def input_names(self) -> Sequence[str]:
        """The names of the arrays that `run` needs."""

    def run(self, inputs: Arrays) -> Outputs:
        """Run the model once.

        Args:
            inputs: arrays of shape (B, ...), for any B from 1 on, named as the model's inputs.

        Returns:
            Arrays of shape (B, ...), named as the model's outputs. The caller owns them.

        Raises:
            OutOfMemory: the micro-batch does not fit.
        """


class Arrangement(NamedTuple):
    """An engine and its streams."""

    whole: Engine  # runs one micro-batch at a time, with all threads
    # Each runs a micro-batch beside the others, with its share of the threads and the same results. May be empty.
    streams: Sequence[Engine] = ()


@runtime_checkable
class Divisible(Protocol):
    """An engine that can also run several micro-batches side by side, each on a stream with its share of the threads.

    The processor and the model decide whether streams serve better: a worker measures it as it loads
    (handlers.batching.trial).
    """

    # Whether the whole engine divides a micro-batch among its streams, so that one of them is as fast for one item.
    deals_out: bool
    stream_counts: Sequence[int]  # the numbers of streams that are worth a trial; the first is the engine's own

    def divide(self, streams: int) -> Arrangement:
        """Return the engine in this number of streams, at most one for each thread; 1 for the whole engine only."""


@runtime_checkable
class Precise(Protocol):
    """An engine that can run in several precisions; a trial measures which is the fastest (handlers.batching.trial)."""

    precisions: Sequence[str]  # the likeliest first; only one if the settings name it

    def in_precision(self, precision: str) -> Engine:
        """Return the engine in one of `precisions`."""


@runtime_checkable
class Recordable(Protocol):
    """An engine that can record CUDA graphs for micro-batches of certain sizes; all others run as before."""

    def record(self, examples: Sequence[Arrays], budget: Budget) -> Shapes:
        """Record graphs for the shapes of `examples`, inputs of one item, and return the first input's (B, ...)."""


def stream_counts(threads: int) -> list[int]:
    """List the numbers of streams that are worth a trial: the powers of two, and one for each thread."""
    powers = [2**power for power in range(1, threads.bit_length()) if 2**power < threads]
    return [1, *powers, threads] if threads > 1 else [1]


# Receives the index of an item that ended before its micro-batch, and its outputs, (1, ...). Any thread of the engine
# may call it; the calls for one micro-batch never overlap.
Listener = Callable[[int, Outputs], None]


def pad_array(rows: Sequence[Sequence[int]], length: int, value: int, *, is_left: bool = False) -> NDArray[np.int64]:
    """Pad B rows of at most `length` numbers, on the right or on the left: (B, length) int64."""
    array = np.full((len(rows), length), value, np.int64)
    for row, numbers in zip(array, rows, strict=True):
        first = length - len(numbers) if is_left else 0
        row[first : first + len(numbers)] = numbers
    return array


def available_threads(wanted: int) -> int:
    """Return the number of threads to use: `wanted`, or one for every core of this process if it is 0."""
    return wanted or usable_cores()


def end_worker(reason: str) -> NoReturn:
    """End a process whose engine can compute nothing more; TorchServe starts a new worker."""
    logger.critical("%s; TorchServe starts a new worker", reason)
    logging.shutdown()
    os._exit(1)


ROWS = (1, 2, 4, 8, 16, 32, 48, 64)  # padding at most doubles a micro-batch
# Each is a length that texts are padded to anyway (handlers.text.inputs.round_length).
TOKENS = (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512)


def steps(ladder: Sequence[int], limit: int) -> list[int]:
    """Return the steps of a ladder up to a limit; the limit is the last one, unless it exceeds the ladder."""
    return sorted({*(step for step in ladder if step <= limit), min(limit, ladder[-1])})


def key_of(arrays: Arrays) -> tuple[object, ...]:
    """Return the part of the shapes and dtypes that the number of rows does not change."""
    return tuple((name, *array.shape[1:], str(array.dtype).removeprefix("torch.")) for name, array in arrays.items())


def ladder(examples: Sequence[Arrays], max_items: int, max_tokens: int | None) -> list[tuple[int, Arrays]]:
    """List the numbers of rows for each shape of examples of one item, within the limits, the largest first."""
    rungs = {}
    for example in examples:
        shape = next(iter(example.values())).shape
        tokens = shape[1] if len(shape) == 2 else 1
        for rows in steps(ROWS, max_items):
            if rows == 1 or rows * tokens <= (max_tokens or rows * tokens):
                rungs[key_of(example), rows] = example
    sized = [(rows, example) for (_, rows), example in rungs.items()]
    return sorted(sized, key=lambda rung: -rung[0] * sum(array.nbytes for array in rung[1].values()))


def round_up(count: int, steps: Sequence[int]) -> int:
    """Return the smallest of ascending steps that is at least `count`; `count` itself if all are smaller."""
    at = bisect_left(steps, count)
    return steps[at] if at < len(steps) else count
