"""Finds the highest load that still holds, by bisection. Pure: the caller says what a measurement is.

    low .. high on a grid -> bisect -> candidate -> measured once more -> Found

A measurement under load is noisy, so the candidate is measured again, and given up for the next lower one as long as it
does not hold a second time. A bisection takes for granted that what holds at some load holds at any lower one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from load.errors import BadRange
from load.measure.summary import Summary

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grid:
    """The loads that are tried: `low`, `low + step`, ... up to `high`."""

    low: float
    high: float
    step: float

    def __post_init__(self) -> None:
        """Raise BadRange where there is nothing to search."""
        if not (0 < self.low <= self.high and self.step > 0):
            raise BadRange(f"cannot search {self.low:g}:{self.high:g}:{self.step:g}: give 0 < low <= high, and a step")

    @property
    def last(self) -> int:
        """Number of the highest load; that of `low` is 0."""
        return int((self.high - self.low) / self.step + 1e-9)

    def load(self, number: int) -> float:
        """Return a load by its number."""
        return self.low + number * self.step


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The end of a search.

    Attributes:
        load: highest load that held twice (once, where it is the lowest of the grid); None where none did.
        measured: last measurement of that load, or of the lowest one where none held.
        is_limit: whether the load is the highest of the grid, so that more might hold.
    """

    load: float | None
    measured: T
    is_limit: bool


def highest(grid: Grid, measure: Callable[[float], T], holds: Callable[[T], bool]) -> Found[T]:
    """Search the grid.

    Args:
        grid: the loads that are tried.
        measure: measures one load.
        holds: says whether a measurement is good enough.
    """
    lowest = measure(grid.load(0))
    if not holds(lowest):
        return Found(None, lowest, is_limit=False)
    # These are the numbers of the highest load that held, and of the lowest that did not.
    held, failed = 0, grid.last
    if grid.last > 0 and holds(measure(grid.load(grid.last))):
        held = grid.last
    while failed - held > 1:
        middle = (held + failed) // 2
        if holds(measure(grid.load(middle))):
            held = middle
        else:
            failed = middle
    verified = lowest
    for number in range(held, 0, -1):
        verified = measure(grid.load(number))
        if holds(verified):
            return Found(grid.load(number), verified, is_limit=number == grid.last)
    return Found(grid.load(0), lowest, is_limit=grid.last == 0)


def is_met(summary: Summary, percent: float) -> bool:
    """Return whether enough of all requests were answered well, and within the latency threshold of the run.

    A failure is not in time: a server that sheds half of its load keeps its p99 and does not hold. A generator that
    fell behind is no obstacle: latency counts from the schedule, so what held would have held without.

    Args:
        summary: a run with a latency threshold.
        percent: least share of its requests, in %.
    """
    return summary.requests > 0 and 100 * summary.in_time >= percent * summary.requests


def fair(measure: Callable[[float], Summary], percent: float) -> Callable[[float], Summary]:
    """Wrap a measurement: one that missed its target and is not valid is made once more, since the generator may have.

    Args:
        measure: measures one load.
        percent: least share of all requests that must be in time, in %.
    """

    def measure_fairly(load: float) -> Summary:
        summary = measure(load)
        is_in_doubt = bool(summary.invalid_reasons) and not summary.unsent
        return measure(load) if is_in_doubt and not is_met(summary, percent) else summary

    return measure_fairly
