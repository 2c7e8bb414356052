"""Engines run micro-batches: one protocol, one module per library.

    named arrays of a micro-batch -> Engine.run               -> named arrays, whose first axis is the same
                                  -> Progressive.run_progressively -> the same, and meanwhile what each item has so far

An engine raises `OutOfMemory` when the micro-batch was too large for it; everything else it raises is a bug.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

    Attributes:
        best_streams: how many streams to make where nobody says.
        is_faster_whole: whether the whole engine runs one item faster than a stream does.
    """

    best_streams: int
    is_faster_whole: bool

    def divide(self, streams: int) -> Sequence[Engine]:
        """Make streams that run at the same time and give the same results as the whole engine.

        Args:
            streams: how many there should be.

        Returns:
            That many, or one for each thread where there are fewer threads; none where that is less than two.
        """


@dataclass(slots=True)
class Progress:
    """What an engine has generated for one item of a micro-batch since it last said so.

    Attributes:
        index: of the item in the micro-batch.
        tokens: new ones, in order; special ones may be among them.
        is_last: whether the item has ended: nothing more comes of it.
    """

    index: int
    tokens: Sequence[int]
    is_last: bool


# Told of progress on whatever thread the engine has; True asks it to generate no more for that item.
Listener = Callable[[Progress], bool]


@runtime_checkable
class Progressive(Protocol):
    """An engine that generates, and can tell while it runs what each item has so far, and which has ended."""

    def run_progressively(self, inputs: Arrays, progress: Listener) -> Outputs:
        """Run the model once, as `run` does.

        Args:
            inputs: as `run` takes them.
            progress: called as tokens come, for one item after the other, never twice at a time for one micro-batch.
                Of some items, or of all, nothing may be told: a search with beams knows its answer in the end only.
                What was told of an item that has ended is its whole answer, the same that the outputs have.

        Returns:
            As `run` does, for all items.

        Raises:
            OutOfMemory: the micro-batch does not fit; what has ended until then holds.
        """


def available_threads(wanted: int) -> int:
    """How many threads to use: `wanted`, or one for every core this process may use where it is 0."""
    return wanted or usable_cores()
