"""The table of a benchmark: repeated measurements of ours and a peer, compared in each round. Pure."""

from collections.abc import Sequence
from math import isfinite
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

COLUMNS = ("measured", "ours", "against", "theirs", "ours / theirs")


class Row(NamedTuple):
    what: str  # the measured quantity with its unit
    ours: Sequence[float]  # one value per round
    against: str  # name of the peer
    theirs: Sequence[float]  # the peer's values in these rounds

    def cells(self) -> tuple[str, ...]:
        compared = spread(ratios(self.ours, self.theirs), 2)
        return self.what, spread(self.ours), self.against, spread(self.theirs), compared

    def to_json(self) -> dict[str, Any]:
        """Return the row for JSON: the quantity, and both figures and their ratio as median, min and max."""
        figures = {"ours": self.ours, "theirs": self.theirs, "ratio": ratios(self.ours, self.theirs)}
        spreads = {name: {"median": median(of), "min": min(of), "max": max(of)} for name, of in figures.items()}
        return {"measured": self.what, "against": self.against, **spreads}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide the values of each round, in which the machine is the same for both."""
    return [value / other for value, other in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Write the median and, for several values, (min..max), with three significant digits by default."""
    if digits is None:
        largest = max((abs(value) for value in values if isfinite(value)), default=0.0)
        digits = max(0, 3 - len(f"{largest:.0f}"))
    middle, least, most = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least}..{most})"


def render(rows: Sequence[Row]) -> Table:
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.cells())
    return table
