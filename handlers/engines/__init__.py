"""Engines: what runs a forward pass. One protocol, one module per library.

    named arrays of a micro-batch -> Engine.run -> named arrays, first axis the same

An engine raises `OutOfMemory` when the micro-batch was too large for it; everything else it raises is a bug.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Outputs = Mapping[str, NDArray[Any]]


class Engine(Protocol):
    """Runs one micro-batch at a time."""

    @property
    def description(self) -> str:
        """Library, device and precision, for the log: "openvino cpu bf16"."""

    @property
    def input_names(self) -> Sequence[str]:
        """Names of the arrays that `run` takes."""

    def run(self, inputs: Arrays) -> Outputs:
        """Run the model once.

        Args:
            inputs: arrays of shape (B, ...), any B from 1 on, named as the model's inputs.

        Returns:
            Arrays of shape (B, ...), named as the model's outputs, numbers as float32; the caller owns them.

        Raises:
            OutOfMemory: the micro-batch does not fit.
        """


@runtime_checkable
class Divisible(Protocol):
    """An engine that can also run several passes side by side, each on its part of the threads.

    A pass takes longer on a part than on the whole, but less than as many times longer as there are parts: its
    threads do not wait for each other at every operator, nor for the one whose core something else just took.
    """

    def divide(self, parts: int) -> Sequence[Engine]:
        """So many engines that run at the same time, or fewer where there are fewer threads; none for less than two.

        Each gives the same results as the whole.
        """


def available_threads(wanted: int) -> int:
    """Threads to use: `wanted`, or every core this process may run on where it is 0."""
    return wanted or len(os.sched_getaffinity(0))
