"""Which waiting items run next, when, and who is refused. Pure: every method is told the time; nothing sleeps.

A request is a ticket of one or more items; each item goes its own way:

    arrive ──> refused                        503: the queue is full, or the prediction says it cannot be in time
       │
       └────> decoding ──> failed             its own error; the caller's business
                 │
                 └───────> ready ──> expired  504: waited longer than it may (timeout_action: reject)
                             │  ^
                             │  └─ late       waits behind all that are not (timeout_action: delay)
                             v
                          running ──> done    `finish` teaches the latency model what it took

Order is request_queue's business, what shares a pass within a level batch_selection's, and how many passes run at once
streams'.

Size: a pass may take half of the latency target, because who arrives just after one starts waits for it and then for
its own. While a more urgent priority keeps coming, passes of the others are courteous, that is shorter: a sixteenth of
the target, or where that is longer five times the fixed cost of a pass, so that courtesy costs at most a fifth of the
engine. Within that a pass takes its lane's share of what is ready, and not always all of it (batch_selection.Limits).

Hold: a pass that is not full waits for items that are here and being decoded, for at most the fixed cost of a pass:
that is what running them apart would cost (the ski-rental bound). A lone request is never held.

Refusal: the work until the answer is what is running, what is ahead in order and the request itself; admission
makes an answer's time of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil, inf
from typing import Generic, TypeVar

from handlers.pipeline.micro_batches import Cost
from handlers.scheduling.admission import Promises
from handlers.scheduling.batch_selection import Limits, Pass, Ticket, choose
from handlers.scheduling.latency_model import LatencyModel, Line
from handlers.scheduling.policy import Policy
from handlers.scheduling.request_queue import Waiting
from handlers.scheduling.streams import Lanes, Running, done_in_s

Key = TypeVar("Key")

# Of the latency target, for a pass.
PASS_SHARE = 0.5
# The same and the fixed costs of a courteous pass; and for how many latency targets a priority that came is awaited.
COURTEOUS_SHARE, COURTEOUS_COSTS, COURTESY_TARGETS = 0.0625, 5.0, 10.0
# Of the requests that an idle worker would refuse because they allow too little, one in so many is tried.
HURRIED_TRY = 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken.

    Attributes:
        reason: QueueFull or Overloaded.
        message: one sentence for its client.
        retry_after_s: when it is worth coming again.
    """

    reason: str
    message: str
    retry_after_s: float


@dataclass(slots=True)
class Scheduler(Generic[Key]):
    """The queue of one worker, and its engine."""

    policy: Policy
    lanes: Lanes[Key]
    waiting: Waiting[Key] = field(init=False)
    promises: Promises = field(init=False)
    _numbers: Iterator[int] = field(default_factory=count)
    _held_since_s: float | None = None
    _hurried: int = 0
    _latest_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nobody waits; promise what the policy asks for."""
        self.waiting = Waiting(self.policy)
        self.promises = Promises(self.policy.max_latency_s)

    # -- requests ------------------------------------------------------------------------------------------------

    def arrive(
        self, now_s: float, items: int, tokens: float, priority: int | None = None, timeout_s: float = inf
    ) -> Ticket | Refusal:
        """A request came.

        Args:
            items: how many it holds.
            tokens: estimate of all their lengths.
            priority: 1..priority_levels, or None.
            timeout_s: what its client allows; it can only shorten the limits.
        """
        policy = self.policy
        priority = policy.default_priority if priority is None else priority
        self._latest_s[priority] = now_s
        deadline_s = now_s + min(policy.max_latency_s, timeout_s)
        waiting = self.waiting.items
        if waiting and waiting + items > policy.max_queue_items:
            retry_s = self._done_in_s(self.waiting.ahead(inf, inf, now_s), now_s)
            return Refusal("QueueFull", f"{waiting} items wait; max_queue_items is {policy.max_queue_items}.", retry_s)
        ahead = self.waiting.ahead(priority, deadline_s, now_s)
        predicted_s = self.promises.predicted_s(self._done_in_s((ahead[0] + items, ahead[1] + tokens), now_s))
        cautious_s = self.promises.cautious_s(predicted_s, priority)
        is_hopeless = now_s + cautious_s > deadline_s
        if is_hopeless and (ahead[0] or self.lanes.running or not self._tries_anyway(timeout_s)):
            limit = f"max_latency_ms is {1000 * policy.max_latency_s:.0f}"
            if timeout_s < policy.max_latency_s:
                limit = f"the request allows {1000 * timeout_s:g}"
            message = f"The answer would take about {1000 * cautious_s:.0f} ms; {limit}."
            return Refusal("Overloaded", message, max(0.0, cautious_s - policy.max_latency_s))
        ticket = Ticket(
            next(self._numbers),
            now_s,
            deadline_s,
            now_s + min(policy.queue_timeout_s, timeout_s),
            priority,
            items,
            tokens,
            predicted_s,
            items,
        )
        self.waiting.add(ticket)
        return ticket

    def _tries_anyway(self, timeout_s: float) -> bool:
        """Whether an idle worker takes what it would refuse, or it would serve nobody and never learn better.

        Each that allows what the policy allows, whatever the model takes; of those in more of a hurry one in a few.
        """
        if timeout_s >= self.policy.max_latency_s:
            return True
        self._hurried = (self._hurried + 1) % HURRIED_TRY
        return self._hurried == 0

    def decoded(self, ticket: Ticket, items: Iterable[tuple[Key, Cost]]) -> None:
        """The ticket's items are ready: those that could be decoded, none maybe."""
        self.waiting.decoded(ticket, items)

    def expire(self, now_s: float) -> list[Ticket]:
        """Remove the tickets that waited too long, where these are rejected; those with a started item go on."""
        return self.waiting.expire(now_s)

    def answered(self, ticket: Ticket, now_s: float) -> bool:
        """An answer is complete; whether it came by its deadline."""
        if ticket.finished_s is not None:
            self.promises.kept(
                now_s,
                ticket.priority,
                predicted_s=ticket.predicted_s,
                took_s=now_s - ticket.arrived_s,
                allowed_s=ticket.deadline_s - ticket.arrived_s,
                delivery_s=now_s - ticket.finished_s,
            )
        return now_s <= ticket.deadline_s

    # -- the engine ----------------------------------------------------------------------------------------------

    def start(self, now_s: float) -> "Running[Key] | float":
        """A lane may be free.

        Returns:
            The pass that runs now; or when to ask again at the latest, infinity until something happens.
        """
        if not self.waiting.ready or not self.lanes.free:
            return inf
        is_wide = self.lanes.is_wide(len(self.waiting.ready))
        model = self.lanes.model(is_wide=is_wide)
        ranked = self.waiting.ranked(now_s)
        is_courteous = self._is_courteous(ranked[0][1].ticket.priority, now_s)
        limits = self.limits(model.line, model.margin, is_courteous=is_courteous)
        busy_s = [0.0] if is_wide else self.lanes.residuals_s(now_s)
        shared = limits.shared(self.waiting.ready_tokens, model.line, busy_s)
        chosen = choose(ranked, shared, model, now_s, busy_s)
        held_until_s = self._hold(chosen, limits, model, now_s)
        if held_until_s > now_s:
            return held_until_s
        self._held_since_s = None
        self.waiting.take(chosen.entries)
        return self.lanes.begin(chosen, now_s, is_wide=is_wide)

    def finish(self, running: Running[Key], seconds: float, *, is_telling: bool = True) -> None:
        """A pass has ended.

        Args:
            running: what `start` returned.
            seconds: that it took.
            is_telling: False where it failed, so that its time says nothing.
        """
        self.lanes.end(running, seconds, is_telling=is_telling)
        for entry in running.chosen.entries:
            entry.ticket.finished_s = running.started_s + seconds

    def limits(self, line: Line, margin: float, *, is_courteous: bool = False) -> Limits:
        """Of a pass that takes what a line says, times a margin: the configuration's, and of time; at least a token."""
        policy = self.policy
        overhead, allowed = policy.overhead, inf
        if line.token_s > 0:
            # What the task's own figure was on another machine, or on this one when it had more to itself.
            overhead = replace(overhead, tokens=max(overhead.tokens, round(line.fixed_s / line.token_s)))
            longest_s = PASS_SHARE * policy.max_latency_s / margin
            if is_courteous:
                longest_s = min(longest_s, max(COURTEOUS_SHARE * policy.max_latency_s, COURTEOUS_COSTS * line.fixed_s))
            allowed = (longest_s - line.fixed_s) / line.token_s
        configured = inf if policy.max_tokens is None else policy.max_tokens
        return Limits(policy.max_items, int(max(1, min(allowed, configured, 2**31))), overhead)

    def _is_courteous(self, priority: int, now_s: float) -> bool:
        """Whether a more urgent priority came lately."""
        lately_s = now_s - COURTESY_TARGETS * self.policy.max_latency_s
        return any(level < priority and latest_s > lately_s for level, latest_s in self._latest_s.items())

    def _hold(self, chosen: Pass[Key], limits: Limits, model: LatencyModel, now_s: float) -> float:
        """Until when the pass waits for what is being decoded; now where it does not."""
        is_full = len(chosen.entries) >= limits.max_items or chosen.tokens >= limits.max_tokens
        if is_full or not self.waiting.is_any_decoding:
            return now_s
        if self._held_since_s is None:
            self._held_since_s = now_s
        slack_s = min(entry.ticket.deadline_s for entry in chosen.entries) - model.cautious_s(chosen.tokens)
        return min(self._held_since_s + model.line.fixed_s, slack_s)

    # -- time ----------------------------------------------------------------------------------------------------

    @property
    def ready_s(self) -> float:
        """How long the engine has to do with what is ready."""
        return self._ends_s((len(self.waiting.ready), self.waiting.ready_tokens), [0.0] * self.lanes.count)

    def _done_in_s(self, work: tuple[int, float], now_s: float) -> float:
        """Until what runs and then so many items of so many tokens in all are done."""
        return self._ends_s(work, self.lanes.residuals_s(now_s))

    def _ends_s(self, work: tuple[int, float], busy_s: list[float]) -> float:
        """The same of lanes that are busy for so long, in passes as `start` would make them."""
        items, tokens = work
        line = self.lanes.expected(tokens / max(1, items))
        limits = self.limits(line, self.lanes.narrow.margin)
        max_tokens = limits.shared(tokens, line, busy_s).max_tokens
        # An item alone in its pass may be longer than any limit.
        passes = min(items, max(ceil(items / limits.max_items), ceil(tokens / max_tokens), self.lanes.count))
        return done_in_s(busy_s, passes * line.fixed_s + tokens * line.token_s, passes)
