"""From the engine's work to an answer: what a newcomer may be promised. Pure.

    work ahead (seconds of the engine) + delivery -> + what such predictions were lately wrong by -> promise

Delivery is what comes after the last pass: its results wait for the next exchange with the frontend. What the
prediction cannot know (who comes later and goes first, a pass that takes longer than others) shows in the errors of the
latest answers, of which the 99th percentile counts; each priority has its own, for the last one's answers stray because
they are overtaken, which is no reason to refuse the first.
"""

from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass, field

# Weight of the latest delivery in the running mean.
NEWEST = 0.05
# Errors that are remembered, and for how long: a stall of the machine is forgotten soon.
REMEMBERED, REMEMBERED_S = 256, 5.0
QUANTILE = 0.995
# Of the target: a promise is never moved by more, so that no history refuses everybody.
MOST_SHARE = 0.5


@dataclass(slots=True)
class Errors:
    """What predictions were lately wrong by, in seconds; more than 0 where an answer took longer."""

    _latest: deque[tuple[float, float]] = field(default_factory=deque)
    _ranked: list[float] = field(default_factory=list)

    def observe(self, now_s: float, error_s: float) -> None:
        """An answer took so much longer than predicted."""
        self._latest.append((now_s, error_s))
        insort(self._ranked, error_s)
        while len(self._latest) > REMEMBERED or self._latest[0][0] < now_s - REMEMBERED_S:
            del self._ranked[bisect_left(self._ranked, self._latest.popleft()[1])]

    @property
    def quantile_s(self) -> float:
        """All but one in a hundred were wrong by at most this; 0 without any."""
        return self._ranked[int(QUANTILE * (len(self._ranked) - 1))] if self._ranked else 0.0


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
        """What 99 of 100 answers with this prediction take at most."""
        most_s = MOST_SHARE * self.target_s
        return max(0.0, predicted_s + max(-most_s, min(most_s, self.errors[priority].quantile_s)))

    def kept(self, now_s: float, priority: int, predicted_s: float, took_s: float, delivery_s: float) -> None:
        """An answer is complete; it took so long, of which the last part was its delivery."""
        self.delivery_s += NEWEST * (delivery_s - self.delivery_s)
        self.errors[priority].observe(now_s, took_s - predicted_s)
