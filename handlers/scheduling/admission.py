"""Who is admitted: whether a newcomer's answer can be expected in time. Pure.

    work ahead (seconds of the engine) + delivery -> + what such predictions were lately wrong by -> admitted or refused

Delivery is what comes after the last micro-batch: its results wait for the next exchange with the frontend. What the
prediction cannot know (who comes later and goes first, a micro-batch that takes longer than others) shows in the errors
of the latest answers. How many of these must be covered follows from what became of those who were admitted: while
hardly an answer is late `least_level` will do, for who is refused without need is lost as surely as who is late; every
late answer asks for more, up to all, so that in the long run `allowed_late` of the answers are late (adaptive conformal
inference: Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021, equation 2).

Only a late answer that could be foreseen does: one that would not have been admitted had `foreseeable` of the errors
been covered. A machine that stalls makes answers late that had all the time in the world, and who is refused for it
afterwards has been refused for nothing.

Each priority has its own errors, for the last one's answers stray because they are overtaken, which is no reason to
refuse the first.
"""

from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf

from handlers.scheduling.policy import Policy
from handlers.scheduling.request_queue import ScheduledRequest
from handlers.scheduling.running_mean import RunningMean


@dataclass(frozen=True, slots=True)
class Tuning:
    """What admission is tuned by. The levels were found in simulated time, with Poisson traffic below and at capacity.

    Attributes:
        delivery_weight: share of the latest delivery in the running mean.
        remembered: errors that are remembered.
        remembered_s: seconds for which they are: a stall of the machine is forgotten soon.
        allowed_late: share of late answers that is aimed at.
        step: how far one answer moves the level, over the share that it is wrong by.
        least_level: least share of the errors that is covered.
        most_level: the level's upper end; above 1 all that is remembered is covered, and many late answers at once are
            paid back one by one.
        foreseeable: share of the errors that a late answer must lie within to say something of admission.
        most_share: share of the target, or of what stands for it, by which errors move a prediction at most, so that no
            history refuses everybody.
        hurried_try: of the requests that an idle worker would refuse because they allow too little, one in so many is
            tried.
    """

    delivery_weight: float = 0.05
    remembered: int = 256
    remembered_s: float = 5.0
    allowed_late: float = 0.003
    step: float = 0.05
    least_level: float = 0.85
    most_level: float = 1.2
    foreseeable: float = 0.98
    most_share: float = 0.5
    hurried_try: int = 16


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not admitted.

    Attributes:
        reason: QueueFull or Overloaded.
        message: one sentence for its client.
        retry_after_s: seconds after which it is worth coming again; of those refused one after the other, each has
            its own turn.
    """

    reason: str
    message: str
    retry_after_s: float


@dataclass(slots=True)
class PredictionErrors:
    """What predictions were lately wrong by, in seconds; more than 0 where an answer took longer.

    Attributes:
        level: share of them that must be covered; above 1 all that are remembered were not enough.
    """

    level: float = TUNING.least_level
    _latest: deque[tuple[float, float]] = field(default_factory=deque)
    _ranked: list[float] = field(default_factory=list)

    def observe(self, now_s: float, error_s: float, *, is_broken: bool) -> None:
        """Learn from an answer that took so much longer than predicted, and broke its deadline or not."""
        self._latest.append((now_s, error_s))
        insort(self._ranked, error_s)
        while len(self._latest) > TUNING.remembered or self._latest[0][0] < now_s - TUNING.remembered_s:
            del self._ranked[bisect_left(self._ranked, self._latest.popleft()[1])]
        moved = self.level + TUNING.step * (is_broken - TUNING.allowed_late)
        self.level = min(TUNING.most_level, max(TUNING.least_level, moved))

    @property
    def covered_s(self) -> float:
        """What as many of them as the level says do not exceed; 0 without any."""
        return self.quantile_s(min(1.0, self.level))

    def quantile_s(self, share: float) -> float:
        """Give what that share of them do not exceed; 0 without any."""
        return self._ranked[int(share * (len(self._ranked) - 1))] if self._ranked else 0.0


@dataclass(slots=True)
class Admission:
    """Knows what answers took, and so who can be admitted.

    Attributes:
        policy: what the worker is held to.
        delivery: seconds from the end of a request's last micro-batch to its answer.
        errors: what predictions were wrong by, for each priority.
    """

    policy: Policy
    delivery: RunningMean = field(default_factory=lambda: RunningMean(0.0, TUNING.delivery_weight))
    errors: defaultdict[int, PredictionErrors] = field(default_factory=lambda: defaultdict(PredictionErrors))
    _hurried: int = 0
    # When the latest of those refused should come again: each has a turn, as the engine has time for it.
    _turn_s: float = 0.0

    def has_room(self, waiting: int, newcomers: int) -> bool:
        """Whether the queue takes so many items more; an empty queue takes any number."""
        return not waiting or waiting + newcomers <= self.policy.max_queue_items

    def queue_full(self, waiting: int, retry_after_s: float) -> Refusal:
        """Refuse what the queue has no room for; `retry_after_s` is when the queue is done."""
        message = f"{waiting} items wait; max_queue_items is {self.policy.max_queue_items}."
        return Refusal("QueueFull", message, retry_after_s)

    def overloaded(
        self, request: ScheduledRequest, work_s: float, *, own_s: float = 0.0, is_idle: bool
    ) -> Refusal | None:
        """Refuse a request whose answer would come too late; note the prediction in one that is admitted.

        Args:
            request: its level, deadline and timeout are known.
            work_s: seconds of the engine until it is done, the work before it included.
            own_s: seconds of the engine that it needs by itself: those who are refused come again so far apart.
            is_idle: whether nothing runs and nothing is ahead of it.
        """
        request.predicted_s = self.predicted_s(work_s)
        cautious_s = self.cautious_s(request.predicted_s, request.level)
        is_hopeless = request.arrived_s + cautious_s > request.deadline_s
        if not is_hopeless or (is_idle and self._tries_anyway(request.timeout_s)):
            return None
        allowed_s = min(self.policy.max_latency_s, request.timeout_s)
        limit = f"max_latency_ms is {1000 * allowed_s:.0f}"
        if request.timeout_s < self.policy.max_latency_s:
            limit = f"the request allows {1000 * request.timeout_s:g}"
        message = f"The answer would take about {1000 * cautious_s:.0f} ms; {limit}."
        room_s = request.arrived_s + max(0.0, cautious_s - allowed_s)
        self._turn_s = max(room_s, self._turn_s + own_s)
        return Refusal("Overloaded", message, self._turn_s - request.arrived_s)

    def predicted_s(self, work_s: float) -> float:
        """Predict the seconds until an answer that needs so many seconds of the engine, those before it included."""
        return work_s + self.delivery.value

    def cautious_s(self, predicted_s: float, priority: int) -> float:
        """Give the seconds that answers with this prediction take at most, but for as many as may be late."""
        return self._moved_s(predicted_s, self.errors[priority].covered_s)

    def answered(self, request: ScheduledRequest, now_s: float) -> None:
        """Learn from an answer that is complete now, where it was predicted and a micro-batch was run for it."""
        if request.finished_s is not None and request.deadline_s < inf:
            took_s, allowed_s = now_s - request.arrived_s, request.deadline_s - request.arrived_s
            self.learn(
                now_s,
                request.level,
                predicted_s=request.predicted_s,
                took_s=took_s,
                allowed_s=allowed_s,
                delivery_s=now_s - request.finished_s,
            )

    def learn(
        self, now_s: float, priority: int, *, predicted_s: float, took_s: float, allowed_s: float, delivery_s: float
    ) -> None:
        """Learn from one answer.

        Args:
            now_s: the time.
            priority: the level whose errors it tells of.
            predicted_s: seconds from arrival to answer, as predicted.
            took_s: seconds that it took.
            allowed_s: seconds from arrival to deadline.
            delivery_s: seconds after its last micro-batch, the last part of what it took.
        """
        self.delivery.observe(delivery_s)
        errors = self.errors[priority]
        is_foreseeable = self._moved_s(predicted_s, errors.quantile_s(TUNING.foreseeable)) > allowed_s
        errors.observe(now_s, took_s - predicted_s, is_broken=took_s > allowed_s and is_foreseeable)

    def _moved_s(self, predicted_s: float, error_s: float) -> float:
        most_s = TUNING.most_share * self.policy.nominal_latency_s
        return max(0.0, predicted_s + max(-most_s, min(most_s, error_s)))

    def _tries_anyway(self, timeout_s: float) -> bool:
        """Whether an idle worker takes what it would refuse, or it would serve nobody and never learn better.

        It takes each that allows what the policy allows, whatever the model takes; of those in more of a hurry it takes
        one in a few.
        """
        if timeout_s >= self.policy.max_latency_s:
            return True
        self._hurried = (self._hurried + 1) % TUNING.hurried_try
        return self._hurried == 0
