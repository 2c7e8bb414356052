"""Makes the table of a benchmark: rows of repeated measurements, compared and held against what is wanted. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import ge, le
from statistics import median

COLUMNS = ("measured", "stock", "ours", "in-process", "compared", "wanted", "")


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound that a comparison is held to.

    Attributes:
        limit: last value that is good.
        is_minimum: whether more is better.
    """

    limit: float
    is_minimum: bool

    def is_met(self, value: float) -> bool:
        """Return whether a value is at least, or at most, the limit."""
        holds: Callable[[float, float], bool] = ge if self.is_minimum else le
        return holds(value, self.limit)

    def __str__(self) -> str:
        return f"{'>=' if self.is_minimum else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison, round by round.

    Attributes:
        what: the quantity with its unit, and how it is compared: "images/s, ours / stock".
        stock, ours, in_process: one value for each round; empty where the comparison leaves it out.
        compared: one ratio or difference for each round, of values of that round.
        digits: number of digits after the decimal point of the values.
        bound: what the median of `compared` is held to; None where nothing is asked.
    """

    what: str
    stock: Sequence[float]
    ours: Sequence[float]
    in_process: Sequence[float]
    compared: Sequence[float]
    digits: int = 1
    bound: Bound | None = None

    def cells(self) -> tuple[str, ...]:
        """Write the row, a cell for each of COLUMNS."""
        values = (spread(series, self.digits) for series in (self.stock, self.ours, self.in_process))
        wanted = ("", "")
        if self.bound is not None:
            wanted = (str(self.bound), "ok" if self.bound.is_met(median(self.compared)) else "short")
        return (self.what, *values, spread(self.compared, 2), *wanted)


def ratios(series: Sequence[float], base: Sequence[float]) -> list[float]:
    """Divide `series` by `base`, round by round."""
    return [value / other for value, other in zip(series, base, strict=True)]


def differences(series: Sequence[float], base: Sequence[float]) -> list[float]:
    """Subtract `base` from `series`, round by round."""
    return [value - other for value, other in zip(series, base, strict=True)]


def spread(series: Sequence[float], digits: int) -> str:
    """Write the median (min..max); of one value the median alone, and of none nothing."""
    if not series:
        return ""
    middle = f"{median(series):.{digits}f}"
    return middle if len(series) == 1 else f"{middle} ({min(series):.{digits}f}..{max(series):.{digits}f})"


def render(rows: Sequence[Row], *, is_markdown: bool = False) -> str:
    """Write the table as text: aligned columns, or GitHub's markdown, which is aligned too."""
    return render_cells(COLUMNS, [row.cells() for row in rows], is_markdown=is_markdown)


def render_cells(columns: Sequence[str], rows: Sequence[Sequence[str]], *, is_markdown: bool = False) -> str:
    """Write a table of other columns; see `render`."""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    rule = ["-" * width for width in widths]
    padded.insert(1, rule)
    if is_markdown:
        # GitHub takes no rule of less than one dash; the last column may have no text at all.
        padded[1] = [each or "-" for each in rule]
        return "\n".join(f"| {' | '.join(line)} |" for line in padded)
    return "\n".join("  ".join(line).rstrip() for line in padded)
