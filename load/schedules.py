"""Schedules of open loops. Pure; the text of a schedule is its name in reports.

`due_s` yields the time of each request: ascending seconds from the start, endless and equal for every call.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced requests, as perf_analyzer's default ones."""

    rate_per_s: float

    def due_s(self) -> Iterator[float]:
        """Divide, since a sum of ten million gaps drifts."""
        return (number / self.rate_per_s for number in count())

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s constant"


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals, such as those of many users; a seed determines the schedule."""

    rate_per_s: float
    seed: int = 0

    def due_s(self) -> Iterator[float]:
        chance = random.Random(self.seed)
        return accumulate(chance.expovariate(self.rate_per_s) for _ in count())

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s poisson"


Schedule = Constant | Poisson
