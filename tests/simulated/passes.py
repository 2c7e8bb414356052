"""What micro-batches take on an engine: measured on this machine, or pinned. The tables that simulations run on.

engine -> wide: one size after the other | narrow: the same on every stream at once -> (tokens, seconds)
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from handlers.engines import Arrays, Engine

Table = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PassTimes:
    """(padded tokens, seconds) of micro-batches, ascending by tokens.

    Attributes:
        wide: of those that have the whole engine.
        narrow: of those on one of `streams` streams while the others are busy; as `wide` where there is one.
        streams: of the engine.
    """

    wide: Table
    narrow: Table
    streams: int

    def wide_s(self, tokens: int) -> float:
        """Give the seconds of a wide micro-batch."""
        return between(self.wide, tokens)

    def narrow_s(self, tokens: int) -> float:
        """Give the seconds of a micro-batch on a stream."""
        return between(self.narrow, tokens)

    def seeds(self, sizes: Sequence[int]) -> tuple[Table, Table]:
        """Give what warm-up would have measured of wide and narrow micro-batches of so many tokens."""
        return tuple((size, self.wide_s(size)) for size in sizes), tuple((size, self.narrow_s(size)) for size in sizes)


def between(table: Table, tokens: int) -> float:
    """Read a table between its sizes by straight lines, and beyond them by the nearest line."""
    right = min(max(1, bisect_left(table, (tokens, 0.0))), len(table) - 1)
    (x0, y0), (x1, y1) = table[right - 1], table[right]
    return max(1e-6, y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))


def measured(
    whole: Engine, streams: Sequence[Engine], inputs: Callable[[int], Arrays], sizes: Sequence[int], seconds: float
) -> PassTimes:
    """Measure an engine.

    Args:
        whole: the engine, on all of its threads.
        streams: the parts that it is divided into; none where it has none.
        inputs: makes the arrays of a micro-batch of one of the sizes.
        sizes: in padded tokens, ascending; at least two.
        seconds: what each size is run for, at least three times; the median counts.
    """
    wide, narrow = [], []
    for size in sizes:
        arrays = inputs(size)
        wide.append((size, median(_runs(whole, arrays, seconds))))
        if streams:
            narrow.append((size, median(_side_by_side(streams, arrays, seconds))))
    return PassTimes(tuple(wide), tuple(narrow or wide), max(1, len(streams)))


def _runs(engine: Engine, arrays: Arrays, seconds: float) -> list[float]:
    # The first prepares the engine for the shape.
    engine.run(arrays)
    took_s: list[float] = []
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s or len(took_s) < 3:
        started_s = time.perf_counter()
        engine.run(arrays)
        took_s.append(time.perf_counter() - started_s)
    return took_s


def _side_by_side(streams: Sequence[Engine], arrays: Arrays, seconds: float) -> list[float]:
    took_s: list[list[float]] = [[] for _ in streams]

    def run(number: int) -> None:
        took_s[number] = _runs(streams[number], arrays, seconds)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for of_stream in took_s for each in of_stream]
