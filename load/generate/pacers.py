"""Says when the requests of an open loop are due. Pure: a pacer yields seconds from the start, ascending, without end.

    Constant   a request every 1 / rate seconds
    Poisson    independent arrivals, as of many users who know nothing of each other
    Bursts     several requests at once, then a pause
    Replay     gaps that were recorded, over and over

Each says the rate it comes to and describes itself, for reports.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle
from typing import Protocol


class Pacer(Protocol):
    """A schedule of requests."""

    @property
    def rate_per_s(self) -> float:
        """Requests per second, in the long run."""

    def due_s(self) -> Iterator[float]:
        """Yield when each request is due, in seconds from the start; the schedule is the same every time."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced requests; `rate_per_s` is above 0."""

    rate_per_s: float

    def due_s(self) -> Iterator[float]:
        """See `Pacer.due_s`."""
        # The number is divided, since a sum of ten million gaps drifts.
        return (number / self.rate_per_s for number in count())

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s constant"


@dataclass(frozen=True, slots=True)
class Poisson:
    """Exponentially distributed gaps; the same seed gives the same schedule."""

    rate_per_s: float
    seed: int = 0

    def due_s(self) -> Iterator[float]:
        """See `Pacer.due_s`."""
        chance = random.Random(self.seed)
        due_s = 0.0
        while True:
            due_s += chance.expovariate(self.rate_per_s)
            yield due_s

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s poisson"


@dataclass(frozen=True, slots=True)
class Bursts:
    """Bursts of `size` requests, so often that `rate_per_s` comes out on average."""

    rate_per_s: float
    size: int

    def due_s(self) -> Iterator[float]:
        """See `Pacer.due_s`."""
        return (number // self.size * self.size / self.rate_per_s for number in count())

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s bursts of {self.size}"


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded gaps between requests in seconds; at least one of them is more than 0."""

    gaps_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise ValueError where the gaps make no schedule."""
        if min(self.gaps_s, default=-1) < 0 or sum(self.gaps_s) <= 0:
            raise ValueError("gaps between requests must not be negative, and not all be 0")

    @property
    def rate_per_s(self) -> float:
        """Requests per second, in the long run."""
        return len(self.gaps_s) / sum(self.gaps_s)

    def due_s(self) -> Iterator[float]:
        """See `Pacer.due_s`."""
        due_s = 0.0
        for gap_s in cycle(self.gaps_s):
            due_s += gap_s
            yield due_s

    def __str__(self) -> str:
        return f"{self.rate_per_s:g}/s replayed"
