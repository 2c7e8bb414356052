"""Which of several ways to run a model serves best, by what each of them took. Pure.

figures of each candidate -> chosen -> the candidate to serve with; told -> the line that the log has of it

A worker has one precision and one number of streams for micro-batches of all sizes: an answer must not depend on who
else came. So the time of an item that comes alone is weighed against that of an item among many.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Tuning:
    """How candidates are compared.

    Attributes:
        least_gain: share by which the product of both times must be less than the likeliest's: what a shared machine
            gives changes by some percent from one moment to the next.
    """

    least_gain: float = 0.05


TUNING = Tuning()


class Candidate(NamedTuple):
    """One way to run a model.

    Attributes:
        precision: the arithmetic; empty where the engine has only one.
        streams: how many micro-batches run side by side; 1 for one at a time, on the whole engine.
    """

    precision: str
    streams: int

    def __str__(self) -> str:
        words = [self.precision] if self.precision else []
        return " ".join([*words, f"in {self.streams} streams" if self.streams > 1 else "whole"])


class Figures(NamedTuple):
    """What a candidate took.

    Attributes:
        alone_s: seconds of a micro-batch of one item, with the engine to itself.
        item_s: seconds an item, where full micro-batches run on all streams side by side.
    """

    alone_s: float
    item_s: float

    @property
    def product(self) -> float:
        """The measure: what is twice as fast for many outweighs what is less than twice as slow for one."""
        return self.alone_s * self.item_s


def chosen(figures: Mapping[Candidate, Figures]) -> Candidate:
    """Take the candidate whose product of both times is least, and the likeliest unless another is clearly better.

    Args:
        figures: at least one, the likeliest first.
    """
    likeliest = next(iter(figures))
    best = min(figures, key=lambda candidate: figures[candidate].product)
    limit = (1 - TUNING.least_gain) * figures[likeliest].product
    return best if figures[best].product < limit else likeliest


def told(
    figures: Mapping[Candidate, Figures],
    taken: Candidate,
    items: int,
    untried: Collection[Candidate],
    *,
    is_remembered: bool,
) -> str:
    """Write the line that the log has of a choice.

    Args:
        figures: see `chosen`.
        taken: what is served with.
        items: of a full micro-batch.
        untried: candidates that there was no time for.
        is_remembered: whether the figures are those of an earlier start.
    """
    parts = [f"{each} {1e3 * took.alone_s:.2f} and {1e3 * took.item_s:.2f}" for each, took in figures.items()]
    likeliest = next(iter(figures))
    why = "the others are not clearly faster" if taken == likeliest else "the least product of both"
    when = " as an earlier start measured it" if is_remembered else ""
    left_out = f"; no time for {', '.join(map(str, untried))}" if untried else ""
    return f"Runs {taken}: ms an item alone and among {items}{when}: {', '.join(parts)}; {why}{left_out}"
