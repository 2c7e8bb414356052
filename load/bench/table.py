"""The table of a benchmark: repeated measurements of ours and of a peer, compared round by round. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

COLUMNS = ("measured", "ours", "against", "theirs", "ours / theirs")


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison.

    Attributes:
        what: what is measured, with its unit.
        ours: one value a round.
        against: name of the peer.
        theirs: its values in the same rounds.
    """

    what: str
    ours: Sequence[float]
    against: str
    theirs: Sequence[float]

    def cells(self) -> tuple[str, ...]:
        """Write the row, a cell for each of COLUMNS."""
        return (
            self.what,
            spread(self.ours),
            self.against,
            spread(self.theirs),
            spread(ratios(self.ours, self.theirs), 2),
        )


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide round by round: what a shared machine has for a round, it has for both."""
    return [value / other for value, other in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Write the median and, of several values, (min..max).

    Args:
        values: at least one.
        digits: after the decimal point; None writes three digits in all, and whole numbers above that.
    """
    if digits is None:
        digits = max(0, 3 - len(str(int(max(map(abs, filter(_is_finite, values)), default=0)))))
    middle, least, most = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least}..{most})"


def _is_finite(value: float) -> bool:
    return abs(value) != float("inf")


def rendered(rows: Sequence[Row]) -> Table:
    """Make the table for a terminal."""
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.cells())
    return table


def markdown(rows: Sequence[Row]) -> str:
    """Write the table as GitHub's markdown."""
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
