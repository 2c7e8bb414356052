"""Finds the highest load that meets a target, by bisection. Pure: the caller defines a measurement.

Measurements are noisy, so the search measures its result once more, and lowers it until a load meets the target twice.
A bisection assumes that every load below a load that meets the target meets it, too.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from load.results import Summary

L = TypeVar("L")
M = TypeVar("M")


def find_highest(loads: Sequence[L], measure: Callable[[L], M], is_met: Callable[[M], bool]) -> tuple[L, M] | None:
    """Return the highest of ascending loads that meets the target twice (the lowest: once), or None."""
    lowest = measure(loads[0])
    if not is_met(lowest):
        return None
    met, failed = 0, len(loads) - 1  # indices of the highest load that met the target, and of the lowest that did not
    if failed > 0 and is_met(measure(loads[failed])):
        met = failed
    while failed - met > 1:
        middle = (met + failed) // 2
        if is_met(measure(loads[middle])):
            met = middle
        else:
            failed = middle
    for index in range(met, 0, -1):
        again = measure(loads[index])
        if is_met(again):
            return loads[index], again
    return loads[0], lowest


def meets_target(summary: Summary, percent: float) -> bool:
    """Return whether `percent` of all requests, failed ones included, had a good response in time."""
    return summary.requests > 0 and 100 * summary.in_time >= percent * summary.requests
