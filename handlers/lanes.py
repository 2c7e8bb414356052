"""The engine as the scheduler sees it: which passes run, and what the next may take. Pure.

    nothing runs, one pass waits     -> wide: the pass takes the whole engine
    more than one                    -> narrow: each takes a lane, its part of the engine, beside the others

A pass on a lane takes longer, but less than as many times longer as there are lanes (handlers.engines.Divisible): side
by side they end sooner than one after the other. With one lane every pass is wide. Each width has a latency model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import inf
from typing import Generic, TypeVar

from handlers.latency import LatencyModel
from handlers.passes import Pass

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, eq=False)
class Running(Generic[Key]):
    """A pass in the engine.

    Attributes:
        chosen: what it holds.
        is_wide: whether it takes the whole engine.
        started_s, ends_s: when it started, when it should end.
    """

    chosen: Pass[Key]
    is_wide: bool
    started_s: float
    ends_s: float


class Lanes(Generic[Key]):
    """One engine's."""

    def __init__(self, wide: LatencyModel, narrow: LatencyModel | None = None, count: int = 1) -> None:
        """Nothing runs.

        Args:
            wide: how long passes take that have the engine to themselves.
            narrow: how long they take on a lane; needed for more than one.
            count: passes that may run at the same time.
        """
        self.count = count
        self.wide = wide
        self.narrow = narrow or wide
        self.running: list[Running[Key]] = []

    @property
    def free(self) -> int:
        """Lanes that nothing runs on; a wide pass takes all of them."""
        return 0 if any(each.is_wide for each in self.running) else self.count - len(self.running)

    def is_wide(self, items: int) -> bool:
        """Whether the next pass takes the whole engine, where so many items wait."""
        return not self.running and (self.count == 1 or items == 1)

    def model(self, *, is_wide: bool) -> LatencyModel:
        """What passes of that width take."""
        return self.wide if is_wide else self.narrow

    def begin(self, chosen: Pass[Key], now_s: float, *, is_wide: bool) -> Running[Key]:
        """A pass starts."""
        running = Running(chosen, is_wide, now_s, now_s + chosen.predicted_s)
        self.running.append(running)
        return running

    def end(self, running: Running[Key], seconds: float, *, is_telling: bool) -> None:
        """It has ended after so long; `is_telling` where that says how long such a pass takes."""
        self.running.remove(running)
        if is_telling:
            self.model(is_wide=running.is_wide).observe(running.chosen.tokens, seconds)

    @property
    def next_end_s(self) -> float:
        """When the first of the running passes should end; infinity where none runs."""
        return min((running.ends_s for running in self.running), default=inf)

    def residuals_s(self, now_s: float) -> list[float]:
        """How long each lane is still busy, ascending."""
        left_s = sorted(max(0.0, running.ends_s - now_s) for running in self.running)
        if any(running.is_wide for running in self.running):
            return left_s * self.count
        return [0.0] * (self.count - len(left_s)) + left_s


def done_in_s(busy_s: Sequence[float], work_s: float, passes: int) -> float:
    """When work is done by lanes that are first busy for so long each.

    Args:
        busy_s: of each lane; at least one.
        work_s: all of it, in seconds of one lane.
        passes: that it is cut into, all alike, each going to the lane that is free first.

    Returns:
        Seconds from now until the last one ends; 0 where there is none.
    """
    free_s = list(busy_s)
    heapify(free_s)
    ended_s = 0.0
    for _ in range(passes):
        ended_s = free_s[0] + work_s / passes
        heapreplace(free_s, ended_s)
    return ended_s
