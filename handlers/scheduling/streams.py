"""The engine as the scheduler sees it: which passes run, and what the next may take. Pure.

    nothing runs, one pass waits     -> wide: the pass takes the whole engine
    more than one                    -> narrow: each takes a lane, its part of the engine, beside the others

A pass on a lane takes longer, but less than as many times longer as there are lanes (handlers.engines.Divisible): side
by side they end sooner than one after the other. With one lane every pass is wide. Each width has a latency model.

Requests are promised what passes on a lane take. If that were overestimated once (a machine that stood still, warm-up
beside a busy neighbour), all would be refused but who comes alone, nothing would run on a lane and teach better, and so
for ever. So when only wide passes have run lately, a lane is taken to be no slower than its part of the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import inf
from typing import Generic, TypeVar

from handlers.scheduling.batch_selection import Pass
from handlers.scheduling.latency_model import LatencyModel, Line

Key = TypeVar("Key")

# So many wide passes without a narrow one make the narrow model doubtful.
DOUBTFUL_PASSES = 8


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
        self._wide_in_a_row = 0

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

    def expected(self, tokens: float) -> Line:
        """What passes of about so many tokens take on a lane."""
        narrow, wide = self.narrow.line, self.wide.line
        if self._wide_in_a_row < DOUBTFUL_PASSES:
            return narrow
        part = Line(self.count * wide.fixed_s, self.count * wide.token_s)
        return min(narrow, part, key=lambda line: line.at(tokens))

    def begin(self, chosen: Pass[Key], now_s: float, *, is_wide: bool) -> Running[Key]:
        """A pass starts."""
        running = Running(chosen, is_wide, now_s, now_s + chosen.predicted_s)
        self.running.append(running)
        return running

    def end(self, running: Running[Key], seconds: float, *, is_telling: bool) -> None:
        """It has ended after so long; `is_telling` where that says how long such a pass takes."""
        self.running.remove(running)
        self._wide_in_a_row = self._wide_in_a_row + 1 if running.is_wide else 0
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
