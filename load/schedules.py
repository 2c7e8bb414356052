"""The schedule of an open loop. Pure; its text is its name in reports."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals, such as those of many users; a seed determines the schedule."""

    rate_per_s: float
    seed: int = 0

    def due_s(self) -> Iterator[float]:
        """Yield the time of each request: ascending seconds from the start, endless and equal for every call."""
        chance = random.Random(self.seed)
        return accumulate(chance.expovariate(self.rate_per_s) for _ in count())

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s poisson"
