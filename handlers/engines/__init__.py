"""Engines run micro-batches: one protocol, one module per library.

    named arrays of a micro-batch -> Engine.run -> named arrays, whose first axis is the same

An engine raises `OutOfMemory` when the micro-batch was too large for it; everything else it raises is a bug.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from handlers.engines.cores import usable_cores

# A failed allocation has one of these in its message, in OpenVINO's errors and in ONNX Runtime's.
ALLOCATION_FAILURES = ("alloc", "out of memory")

Arrays = Mapping[str, NDArray[Any]]
Outputs = Mapping[str, NDArray[Any]]


class Engine(Protocol):
    """Runs one micro-batch at a time."""

    @property
    def description(self) -> str:
        """Library, device and precision, as the log names them: "openvino cpu bf16"."""

    @property
    def input_names(self) -> Sequence[str]:
        """The names of the arrays that `run` takes."""

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
    """How an engine is used.

    Attributes:
        whole: runs one micro-batch at a time, with all threads.
        streams: run micro-batches side by side, each with its share of the threads, with the same results; may be none.
    """

    whole: Engine
    streams: Sequence[Engine] = ()


@runtime_checkable
class Divisible(Protocol):
    """An engine that can also run several micro-batches side by side, each on a stream with its share of the threads.

    Whether streams serve better depends on the processor and the model, and is measured as a worker loads
    (handlers.batching.trial).

    Attributes:
        deals_out: whether the whole engine divides a micro-batch among its streams, so that one item alone is as fast
            on one of them.
        stream_counts: the numbers of streams that are worth a trial; the first is that of the engine itself.
    """

    deals_out: bool
    stream_counts: Sequence[int]

    def divide(self, streams: int) -> Arrangement:
        """Return the engine in so many streams, at most one for each thread; 1 for none beside the whole."""


@runtime_checkable
class Precise(Protocol):
    """An engine that can run in several precisions, of which a trial may tell the fastest (handlers.batching.trial).

    Attributes:
        precisions: those to choose from, the likeliest first; only one where there is nothing to choose.
    """

    precisions: Sequence[str]

    def in_precision(self, precision: str) -> Engine:
        """Return the engine in one of `precisions`."""


def stream_counts(threads: int) -> list[int]:
    """List the numbers of streams that are worth a trial: one, two, more by powers of two, one for each thread."""
    powers = [2**power for power in range(1, threads.bit_length()) if 2**power < threads]
    return [1, *powers, threads] if threads > 1 else [1]


# Called on any thread of an engine that ends some items before their micro-batch, never twice at a time for one
# micro-batch: an item's index, and its outputs, (1, ...).
Listener = Callable[[int, Outputs], None]


def padded(rows: Sequence[Sequence[int]], length: int, value: int, *, is_left: bool = False) -> NDArray[np.int64]:
    """Pad B rows of at most `length` numbers, on the right or on the left: (B, length) int64."""
    array = np.full((len(rows), length), value, np.int64)
    for row, numbers in zip(array, rows, strict=True):
        first = length - len(numbers) if is_left else 0
        row[first : first + len(numbers)] = numbers
    return array


def available_threads(wanted: int) -> int:
    """Return how many threads to use: `wanted`, or one for every core this process may use where it is 0."""
    return wanted or usable_cores()
