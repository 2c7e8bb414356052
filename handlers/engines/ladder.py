"""The sizes of micro-batches that a GPU records graphs for. Pure.

shapes, limits -> ladder   -> rungs, the largest first
a micro-batch  -> round_up -> the smallest rung; the rows between are padding
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from handlers.engines import Arrays

ROWS = (1, 2, 4, 8, 16, 32, 48, 64)  # padding at most doubles a micro-batch
# Each is a length that texts are padded to anyway (handlers.text.inputs.round_length).
TOKENS = (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512)


def steps(ladder: Sequence[int], limit: int) -> list[int]:
    """Return the steps of a ladder up to a limit; the limit is the last one, unless it exceeds the ladder."""
    return sorted({*(step for step in ladder if step <= limit), min(limit, ladder[-1])})


def key_of(arrays: Arrays) -> tuple[Any, ...]:
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
