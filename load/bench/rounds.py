"""Makes the rounds of a benchmark: as many as the part's time allows, with every figure measured anew in each.

    Rounds -> Round 1, 2, ... -> measure_in_turn -> a value a round for each figure -> rows of load.bench.table

Figures are compared round by round, so a part that runs out of time ends after a whole round.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from load.bench.machine import wait_idle
from load.bench.progress import progress

Series = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    Attributes:
        number: counts from 1 on.
        most: number of rounds that are wanted.
    """

    number: int
    most: int

    def __str__(self) -> str:
        return f"round {self.number}/{self.most}"


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one part; a benchmark may go through them more than once.

    Attributes:
        most: number of rounds that are wanted; the first one is always made.
        ends_s: when the part is to be over, in seconds of `clock`.
        clock: tells the time in seconds; a test brings its own.
    """

    most: int
    ends_s: float = float("inf")
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def within(cls, most: int, time_s: float) -> "Rounds":
        """Begin a part now that is to be over in `time_s` seconds."""
        return cls(most, time.monotonic() + time_s)

    def __iter__(self) -> Iterator[Round]:
        """Yield rounds, but none that would end too late if it took as long as the longest before it."""
        longest_s = 0.0
        for number in range(1, self.most + 1):
            started_s = self.clock()
            if number > 1 and started_s + longest_s > self.ends_s:
                progress(f"no time for more than {number - 1} of {self.most} rounds; --minutes gives more")
                return
            yield Round(number, self.most)
            longest_s = max(longest_s, self.clock() - started_s)


def measure_in_turn(rounds: Rounds, what: str, figures: Mapping[str, Callable[[], float]], kept: Series) -> None:
    """Measure every figure once a round, each as soon as the machine is idle.

    Args:
        rounds: how often everything is measured.
        what: name of the part, for lines of progress.
        figures: name -> one measurement, which returns inputs per second.
        kept: name -> the values so far, in inputs per second; each figure's list grows by one value a round.
    """
    for each in rounds:
        for name, measure in figures.items():
            wait_idle()
            per_s = measure()
            progress(f"{each}, {what}, {name}: {per_s:.1f}/s")
            kept[name].append(per_s)
