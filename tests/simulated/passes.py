"""What micro-batches take on an engine: the tables that simulations run on."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

Table = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PassTimes:
    """(padded tokens, seconds) of micro-batches, ascending by tokens.

    Attributes:
        wide: of those that have the whole engine.
        narrow: of those on one of `streams` streams while the others are busy.
        streams: of the engine.
    """

    wide: Table
    narrow: Table
    streams: int

    def wide_s(self, tokens: int) -> float:
        """Return the seconds of a wide micro-batch."""
        return between(self.wide, tokens)

    def narrow_s(self, tokens: int) -> float:
        """Return the seconds of a micro-batch on a stream."""
        return between(self.narrow, tokens)

    def seeds(self, sizes: Sequence[int]) -> tuple[Table, Table]:
        """Return what warm-up would have measured of wide and narrow micro-batches of so many tokens."""
        return tuple((size, self.wide_s(size)) for size in sizes), tuple((size, self.narrow_s(size)) for size in sizes)


def between(table: Table, tokens: int) -> float:
    """Read a table between its sizes by straight lines, and beyond them by the nearest line."""
    right = min(max(1, bisect_left(table, (tokens, 0.0))), len(table) - 1)
    (x0, y0), (x1, y1) = table[right - 1], table[right]
    return max(1e-6, y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))
