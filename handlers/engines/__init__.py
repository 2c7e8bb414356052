"""Engines run micro-batches: one protocol, one module per library.

    named arrays of a micro-batch -> Engine.run -> named arrays, whose first axis is the same

An engine raises `OutOfMemory` when the micro-batch was too large for it; everything else it raises is a bug.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from handlers.engines.cores import usable_cores

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


@runtime_checkable
class Divisible(Protocol):
    """An engine that can also run several micro-batches side by side, each on a stream with its share of the threads.

    A micro-batch takes longer on a stream than on the whole engine, but not as many times longer as there are streams:
    its threads do not wait for each other at every operator, nor for the one whose core something else just took.
    """

    def divide(self, streams: int) -> Sequence[Engine]:
        """Make streams that run at the same time and give the same results as the whole engine.

        Args:
            streams: how many there should be.

        Returns:
            That many, or one for each thread where there are fewer threads; none where that is less than two.
        """


def available_threads(wanted: int) -> int:
    """How many threads to use: `wanted`, or one for every core this process may use where it is 0."""
    return wanted or usable_cores()
