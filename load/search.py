"""Finds the highest load that still holds, by bisection. Pure: the caller says what a measurement is.

A measurement under load is noisy, so what the bisection found is measured once more, and given up for the next lower
load as long as it does not hold a second time. A bisection assumes that what holds at some load holds at any lower one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from load.results import Summary

L = TypeVar("L")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Found(Generic[L, M]):
    """The end of a search.

    Attributes:
        load: highest load that held twice (once, where it is the lowest); None where none did.
        measured: last measurement of that load, or of the lowest one where none held.
        is_limit: whether the load is the highest that was offered, so that more might hold.
    """

    load: L | None
    measured: M
    is_limit: bool


def highest(loads: Sequence[L], measure: Callable[[L], M], holds: Callable[[M], bool]) -> Found[L, M]:
    """Search ascending loads, at least one, for the highest whose measurement holds."""
    lowest = measure(loads[0])
    if not holds(lowest):
        return Found(None, lowest, is_limit=False)
    # Numbers of the highest load that held, and of the lowest that did not.
    last = len(loads) - 1
    held, failed = 0, last
    if last > 0 and holds(measure(loads[last])):
        held = last
    while failed - held > 1:
        middle = (held + failed) // 2
        if holds(measure(loads[middle])):
            held = middle
        else:
            failed = middle
    for number in range(held, 0, -1):
        again = measure(loads[number])
        if holds(again):
            return Found(loads[number], again, is_limit=number == last)
    return Found(loads[0], lowest, is_limit=last == 0)


def is_met(summary: Summary, percent: float) -> bool:
    """Return whether `percent` of all requests were answered well within the run's latency threshold.

    A failure is not in time: a server that sheds half of its load keeps its p99 and does not hold. A generator that
    fell behind is no obstacle: latency counts from the schedule, so what held would have held without.
    """
    return summary.requests > 0 and 100 * summary.in_time >= percent * summary.requests


def fair(measure: Callable[[L], Summary], percent: float) -> Callable[[L], Summary]:
    """Wrap a measurement: one that missed its target and is not valid is made once more."""

    def measure_fairly(load: L) -> Summary:
        summary = measure(load)
        # Where requests could not be sent at all, a second attempt does no better.
        is_in_doubt = bool(summary.invalid_reasons) and not summary.unsent
        return measure(load) if is_in_doubt and not is_met(summary, percent) else summary

    return measure_fairly
