"""Schedules of open loops. Pure; the text of a schedule is its name in reports.

`due_s` yields when each request is due: ascending seconds from the start, without end and the same every time.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced requests; `rate_per_s` is above 0."""

    rate_per_s: float

    def due_s(self) -> Iterator[float]:
        """Yield when each request is due; divided, since a sum of ten million gaps drifts."""
        return (number / self.rate_per_s for number in count())

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s constant"


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals, as of many users who know nothing of each other; the same seed makes the same schedule."""

    rate_per_s: float
    seed: int = 0

    def due_s(self) -> Iterator[float]:
        """Yield when each request is due: the gaps are exponentially distributed."""
        chance = random.Random(self.seed)
        return accumulate(chance.expovariate(self.rate_per_s) for _ in count())

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s poisson"


Schedule = Constant | Poisson
