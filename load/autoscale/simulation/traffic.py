"""Requests over a day: a curve of rates, and Poisson arrivals by it. Pure but for the given generator.

Day -> rate_per_s(t) -> arrivals: times in s, ascending, a second at a time
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Step:
    """More requests from one moment to the next, as after a mail to all customers.

    Attributes:
        starts_s, ends_s: when.
        rate_per_s: how many more.
    """

    starts_s: float
    ends_s: float
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Day:
    """A curve that goes from its least to its most and back, a cosine, as traffic of one time zone does; and a step.

    Attributes:
        length_s: of the day.
        least_per_s, most_per_s: requests per second, in the night and in the evening.
        peak_s: when they are most.
        step: sudden; None without any.
    """

    length_s: float
    least_per_s: float
    most_per_s: float
    peak_s: float
    step: Step | None = None

    def rate_per_s(self, now_s: float) -> float:
        """Give the requests per second that are expected at a moment."""
        phase = (1 + math.cos(2 * math.pi * (now_s - self.peak_s) / self.length_s)) / 2
        rate = self.least_per_s + (self.most_per_s - self.least_per_s) * phase
        if self.step is not None and self.step.starts_s <= now_s < self.step.ends_s:
            rate += self.step.rate_per_s
        return rate

    def arrivals(self, seed: int) -> Iterator[list[float]]:
        """Yield the times of each second's requests, ascending, in s: Poisson, at the rate of its middle.

        Args:
            seed: the same seed gives the same requests.
        """
        generator = np.random.default_rng(seed)
        for second in range(math.ceil(self.length_s)):
            number = generator.poisson(self.rate_per_s(second + 0.5))
            yield sorted((second + generator.random(number)).tolist())


def typical(held_per_s: float, replicas_at_peak: float, length_s: float = 86_400.0) -> Day:
    """Make the day that the rules are tried on: ten times as much in the evening as in the night, and one step.

    Args:
        held_per_s: requests per second that one replica holds.
        replicas_at_peak: how many of them the evening takes, each at what it holds.
        length_s: a shorter day is a steeper one.
    """
    most = held_per_s * replicas_at_peak
    # In the morning, when few replicas are there: a quarter of the evening more, for a fortieth of the day.
    step = Step(0.4 * length_s, 0.425 * length_s, most / 4)
    return Day(length_s, most / 10, most, 0.8 * length_s, step)
