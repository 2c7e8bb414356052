"""Makes the table of several contenders: each one's values, and ours against the best of the others. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from load.bench.table import Bound, ratios, spread


@dataclass(frozen=True, slots=True)
class Standing:
    """One quantity of every contender, round by round.

    Attributes:
        what: the quantity with its unit.
        values: contender -> one value a round.
        ours: the contender that is compared.
        others: the contenders that it is compared with; the best of a round is what counts in that round.
        is_more_better: whether the best is the highest.
        bound: what the median of ours / best is held to.
        digits: number of digits after the decimal point of the values.
    """

    what: str
    values: Mapping[str, Sequence[float]]
    ours: str
    others: Sequence[str]
    is_more_better: bool
    bound: Bound
    digits: int = 1

    @property
    def compared(self) -> list[float]:
        """Ours over the best of the others, round by round; no number, and in no bound, where both are infinite."""
        best = max if self.is_more_better else min
        rounds = zip(*(self.values[name] for name in self.others), strict=True)
        return ratios(self.values[self.ours], [best(each) for each in rounds])

    def cells(self, contenders: Sequence[str]) -> tuple[str, ...]:
        """Write the row: a cell for each contender, then as load.bench.table has it."""
        compared = self.compared
        verdict = "ok" if self.bound.is_met(median(compared)) else "short"
        values = (spread(self.values.get(name, ()), self.digits) for name in contenders)
        return (self.what, *values, spread(compared, 2), str(self.bound), verdict)


def columns(contenders: Sequence[str]) -> tuple[str, ...]:
    """Name the cells of `Standing.cells`."""
    return ("measured", *contenders, "ours / best of the others", "wanted", "")
