"""Finds the highest load that still holds, by bisection. Pure: the caller says what a measurement is.

A measurement under load is noisy, so what the bisection found is measured once more, and given up for the next lower
load as long as it does not hold a second time. A bisection assumes that what holds at some load holds at any lower one.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from load.results import Summary

L = TypeVar("L")
M = TypeVar("M")


def highest(loads: Sequence[L], measure: Callable[[L], M], holds: Callable[[M], bool]) -> tuple[L, M] | None:
    """Return the highest of ascending loads that held twice (once, where it is the lowest), and its last measurement.

    It is None where not even the lowest load holds.
    """
    lowest = measure(loads[0])
    if not holds(lowest):
        return None
    # Numbers of the highest load that held, and of the lowest that did not.
    held, failed = 0, len(loads) - 1
    if failed > 0 and holds(measure(loads[failed])):
        held = failed
    while failed - held > 1:
        middle = (held + failed) // 2
        if holds(measure(loads[middle])):
            held = middle
        else:
            failed = middle
    for number in range(held, 0, -1):
        again = measure(loads[number])
        if holds(again):
            return loads[number], again
    return loads[0], lowest


def is_met(summary: Summary, percent: float) -> bool:
    """Return whether `percent` of all requests were answered well within the run's latency threshold.

    A failure is not in time: a server that sheds half of its load keeps its p99 and does not hold. A generator that
    fell behind is no obstacle: latency counts from the schedule, so what held would have held without.
    """
    return summary.requests > 0 and 100 * summary.in_time >= percent * summary.requests
