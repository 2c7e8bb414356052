"""From the engine's work to an answer: what a newcomer may be promised. Pure.

    work ahead (seconds of the engine) + delivery -> + what such predictions were lately wrong by -> promise

Delivery is what comes after the last pass: its results wait for the next exchange with the frontend. What the
prediction cannot know (who comes later and goes first, a pass that takes longer than others) shows in the errors of the
latest answers. How many of these a promise must cover follows from what became of the promises: while hardly an answer
is late LEAST_LEVEL will do, for who is refused without need is lost as surely as who is late; every late answer asks
for more, up to all, so that in the long run ALLOWED_LATE of the answers are late (adaptive conformal inference:
Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021, equation 2).

Only a late answer that could be foreseen does: one that a promise covering FORESEEABLE of the errors would not have
allowed. A machine that stalls makes answers late that had all the time in the world, and who is refused for it
afterwards has been refused for nothing.

Each priority has its own errors, for the last one's answers stray because they are overtaken, which is no reason to
refuse the first.
"""

from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass, field

# Weight of the latest delivery in the running mean.
NEWEST = 0.05
# Errors that are remembered, and for how long: a stall of the machine is forgotten soon.
REMEMBERED, REMEMBERED_S = 256, 5.0
# Share of late answers that is aimed at, the step by which each answer moves the level, and the level's range: above 1
# all that is remembered is covered, and many late answers at once are paid back one by one.
ALLOWED_LATE, STEP = 0.003, 0.05
LEAST_LEVEL, MOST_LEVEL = 0.85, 1.2
# Share of the errors that a late answer must lie within for being late to say something of promises.
FORESEEABLE = 0.98
# Of the target: a promise is never moved by more, so that no history refuses everybody.
MOST_SHARE = 0.5


@dataclass(slots=True)
class Errors:
    """What predictions were lately wrong by, in seconds; more than 0 where an answer took longer.

    Attributes:
        level: share of them that a promise must cover; above 1 all that are remembered were not enough.
    """

    level: float = LEAST_LEVEL
    _latest: deque[tuple[float, float]] = field(default_factory=deque)
    _ranked: list[float] = field(default_factory=list)

    def observe(self, now_s: float, error_s: float, *, is_broken: bool) -> None:
        """An answer took so much longer than predicted, and a promise was broken or none."""
        self._latest.append((now_s, error_s))
        insort(self._ranked, error_s)
        while len(self._latest) > REMEMBERED or self._latest[0][0] < now_s - REMEMBERED_S:
            del self._ranked[bisect_left(self._ranked, self._latest.popleft()[1])]
        moved = self.level + STEP * (is_broken - ALLOWED_LATE)
        self.level = min(MOST_LEVEL, max(LEAST_LEVEL, moved))

    @property
    def covered_s(self) -> float:
        """What as many of them as the level says do not exceed; 0 without any."""
        return self.quantile_s(min(1.0, self.level))

    def quantile_s(self, share: float) -> float:
        """What that share of them do not exceed; 0 without any."""
        return self._ranked[int(share * (len(self._ranked) - 1))] if self._ranked else 0.0


@dataclass(slots=True)
class Promises:
    """What answers took, and so what the next ones will.

    Attributes:
        target_s: from arrival to answer.
        delivery_s: from the end of a request's last pass to its answer, in the mean.
        errors: by priority.
    """

    target_s: float
    delivery_s: float = 0.0
    errors: defaultdict[int, Errors] = field(default_factory=lambda: defaultdict(Errors))

    def predicted_s(self, work_s: float) -> float:
        """Until an answer that needs so many seconds of the engine, those before it included."""
        return work_s + self.delivery_s

    def cautious_s(self, predicted_s: float, priority: int) -> float:
        """What answers with this prediction take at most, but for as many as may be late."""
        return self._moved_s(predicted_s, self.errors[priority].covered_s)

    def kept(
        self, now_s: float, priority: int, *, predicted_s: float, took_s: float, allowed_s: float, delivery_s: float
    ) -> None:
        """An answer is complete.

        Args:
            now_s: the time.
            priority: whose errors it tells of.
            predicted_s, took_s, allowed_s: from its arrival on: what was predicted, what came, until when it was due.
            delivery_s: the last part of what it took.
        """
        self.delivery_s += NEWEST * (delivery_s - self.delivery_s)
        errors = self.errors[priority]
        is_foreseeable = self._moved_s(predicted_s, errors.quantile_s(FORESEEABLE)) > allowed_s
        errors.observe(now_s, took_s - predicted_s, is_broken=took_s > allowed_s and is_foreseeable)

    def _moved_s(self, predicted_s: float, error_s: float) -> float:
        most_s = MOST_SHARE * self.target_s
        return max(0.0, predicted_s + max(-most_s, min(most_s, error_s)))
