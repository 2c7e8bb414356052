"""The sizes of micro-batches that a GPU records graphs for. Pure.

a shape's rows and tokens -> sizes    -> the ladder's rungs within the limits
a micro-batch             -> round_up -> the smallest rung; the rows between are padding
"""

from bisect import bisect_left
from collections.abc import Sequence

# Padding at most doubles a micro-batch.
ROWS = (1, 2, 4, 8, 16, 32, 48, 64)
# Each is a length that texts are padded to anyway (handlers.text.inputs.round_length).
TOKENS = (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512)


def steps(ladder: Sequence[int], limit: int) -> list[int]:
    """Return the steps of a ladder up to a limit; the limit is the last one, unless it exceeds the ladder."""
    return sorted({*(step for step in ladder if step <= limit), min(limit, ladder[-1])})


def sizes(most_items: int, most_tokens: int | None, tokens: int) -> list[int]:
    """Return the numbers of items, each of so many tokens, for which a graph may be recorded."""
    most = most_items if most_tokens is None else max(1, most_tokens // tokens)
    return [rows for rows in steps(ROWS, most_items) if rows <= most]


def round_up(count: int, steps: Sequence[int]) -> int:
    """Return the smallest of ascending steps that is at least `count`; `count` itself if all are smaller."""
    at = bisect_left(steps, count)
    return steps[at] if at < len(steps) else count
