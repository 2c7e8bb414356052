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

Order: by level, then what can still be in time before what cannot, then earliest deadline. A request's level is its
priority, less one for every AGING_TARGETS times the latency target that it has waited, without end: whatever comes
later, a request is overtaken for a bounded time only. What shares a pass within a level is handlers.passes' business.

Size: a pass may take half of the latency target, because who arrives just after one starts waits for it and then for
its own.

Hold: a pass that is not full waits for items that are here and being decoded, for at most the fixed cost of a pass:
that is what running them apart would cost (the ski-rental bound). A lone request is never held.

Refusal: the work until the answer is what is running, what is ahead in order and the request itself; handlers.promises
makes an answer's time of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil, inf
from typing import Generic, TypeVar

from handlers.config import HandlerConfig
from handlers.latency import LatencyModel
from handlers.passes import Entry, Limits, Pass, Rank, Ticket, choose
from handlers.plan import FORWARD_PASS, Cost, Overhead
from handlers.promises import Promises

Key = TypeVar("Key")

AGING_TARGETS = 2.0
PASS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Policy:
    """What the scheduler is held to.

    Attributes:
        max_latency_s: target from arrival to answer.
        max_items: most items of a pass.
        max_tokens: most padded tokens of a pass; None for no limit.
        priority_levels: levels there are, 1 being first.
        default_priority: of a request that names none.
        queue_timeout_s: most that a request may wait for its pass.
        is_late_rejected: whether one that waited longer is refused, or run after all others.
        max_queue_items: most items that wait.
        overhead: what one more pass costs, for the plan.
    """

    max_latency_s: float
    max_items: int
    max_tokens: int | None = None
    priority_levels: int = 1
    default_priority: int = 1
    queue_timeout_s: float = inf
    is_late_rejected: bool = True
    max_queue_items: int = 512
    overhead: Overhead = FORWARD_PASS

    @classmethod
    def of(cls, config: HandlerConfig, overhead: Overhead) -> "Policy":
        """What an archive's settings say."""
        scheduling = config.scheduling
        levels = scheduling.priority_levels
        return cls(
            max_latency_s=scheduling.max_latency_ms / 1000,
            max_items=scheduling.max_batch_items or config.max_items,
            max_tokens=scheduling.max_batch_tokens or config.max_tokens,
            priority_levels=levels,
            default_priority=scheduling.default_priority or (levels + 1) // 2,
            queue_timeout_s=scheduling.queue_timeout_ms / 1000,
            is_late_rejected=scheduling.timeout_action == "reject",
            max_queue_items=scheduling.max_queue_items,
            overhead=overhead,
        )


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


@dataclass(frozen=True, slots=True)
class Running(Generic[Key]):
    """The pass in the engine: when it started, when it should end."""

    chosen: Pass[Key]
    started_s: float
    ends_s: float


@dataclass(slots=True)
class Scheduler(Generic[Key]):
    """The queue of one worker."""

    policy: Policy
    model: LatencyModel
    promises: Promises = field(init=False)
    running: Running[Key] | None = None
    _numbers: Iterator[int] = field(default_factory=count)
    _decoding: dict[int, Ticket] = field(default_factory=dict)
    _ready: list[Entry[Key]] = field(default_factory=list)
    _held_since_s: float | None = None

    def __post_init__(self) -> None:
        """Promise what the policy asks for."""
        self.promises = Promises(self.policy.max_latency_s)

    # -- arrivals ------------------------------------------------------------------------------------------------

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
        deadline_s = now_s + min(policy.max_latency_s, timeout_s)
        waiting = self.waiting_items
        if waiting and waiting + items > policy.max_queue_items:
            retry_s = self._drain_s(self._ahead(inf, inf, now_s))
            return Refusal("QueueFull", f"{waiting} items wait; max_queue_items is {policy.max_queue_items}.", retry_s)
        ahead = self._ahead(priority, deadline_s, now_s)
        residual_s = max(0.0, self.running.ends_s - now_s) if self.running else 0.0
        work_s = residual_s + self._drain_s((ahead[0] + items, ahead[1] + tokens))
        predicted_s = self.promises.predicted_s(work_s)
        # An empty worker takes what comes, or a model slower than its target would serve nobody and learn nothing.
        is_idle = not ahead[0] and self.running is None and timeout_s >= policy.max_latency_s
        cautious_s = self.promises.cautious_s(predicted_s, priority)
        if now_s + cautious_s > deadline_s and not is_idle:
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
        self._decoding[ticket.number] = ticket
        return ticket

    def decoded(self, ticket: Ticket, items: Iterable[tuple[Key, Cost]]) -> None:
        """The ticket's items are ready: those that could be decoded, none maybe."""
        del self._decoding[ticket.number]
        entries = [Entry(key, ticket, cost) for key, cost in items]
        ticket.items = ticket.waiting = len(entries)
        ticket.tokens = sum(entry.cost.length for entry in entries)
        ticket.is_decoded = True
        self._ready += entries

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a request that nobody waits for any more; what is running of it runs on."""
        self._decoding.pop(ticket.number, None)
        self._ready = [entry for entry in self._ready if entry.ticket is not ticket]

    # -- the queue -----------------------------------------------------------------------------------------------

    @property
    def waiting_items(self) -> int:
        """Items that have not started, decoded or not."""
        return len(self._ready) + sum(ticket.items for ticket in self._decoding.values())

    @property
    def ready_items(self) -> int:
        """Items that could start now."""
        return len(self._ready)

    @property
    def ready_s(self) -> float:
        """How long the engine has to do with what is ready."""
        return self._drain_s((len(self._ready), sum(entry.cost.length for entry in self._ready)))

    def oldest_s(self, now_s: float) -> float:
        """How long the oldest ready item has been here; 0 without any."""
        return max((now_s - entry.ticket.arrived_s for entry in self._ready), default=0.0)

    def expire(self, now_s: float) -> list[Ticket]:
        """Remove the tickets that waited too long, where these are rejected; those with a started item go on."""
        if not self.policy.is_late_rejected:
            return []
        tickets = dict.fromkeys(e.ticket for e in self._ready if e.ticket.expires_s <= now_s)
        expired = [ticket for ticket in tickets if ticket.waiting == ticket.items]
        if expired:
            gone = set(expired)
            self._ready = [entry for entry in self._ready if entry.ticket not in gone]
        return expired

    def next_expiry_s(self) -> float:
        """When `expire` may next have something to remove; infinity when never."""
        if not self.policy.is_late_rejected:
            return inf
        return min((e.ticket.expires_s for e in self._ready if e.ticket.waiting == e.ticket.items), default=inf)

    # -- the engine ----------------------------------------------------------------------------------------------

    def start(self, now_s: float) -> "Pass[Key] | float":
        """The engine is free.

        Returns:
            The pass that runs now; or when to ask again at the latest, infinity where nothing waits.
        """
        if not self._ready:
            return inf
        chosen = choose(self._ranked(now_s), self._limits(), self.model, now_s)
        held_until_s = self._hold(chosen, now_s)
        if held_until_s > now_s:
            return held_until_s
        self._held_since_s = None
        started = set(chosen.entries)
        self._ready = [entry for entry in self._ready if entry not in started]
        for entry in chosen.entries:
            entry.ticket.waiting -= 1
        self.running = Running(chosen, now_s, now_s + chosen.predicted_s)
        return chosen

    def finish(self, seconds: float, *, is_telling: bool = True) -> None:
        """The running pass has ended.

        Args:
            seconds: that it took.
            is_telling: False where it failed, so that its time says nothing.
        """
        if self.running is None:
            return
        if is_telling:
            self.model.observe(self.running.chosen.tokens, seconds)
        for entry in self.running.chosen.entries:
            entry.ticket.finished_s = self.running.started_s + seconds
        self.running = None

    def answered(self, ticket: Ticket, now_s: float) -> bool:
        """An answer is complete; whether it came by its deadline."""
        if ticket.finished_s is not None:
            took_s, delivery_s = now_s - ticket.arrived_s, now_s - ticket.finished_s
            self.promises.kept(now_s, ticket.priority, ticket.predicted_s, took_s, delivery_s)
        return now_s <= ticket.deadline_s

    # -- order ---------------------------------------------------------------------------------------------------

    def _level(self, ticket: Ticket, now_s: float) -> float:
        """Its place among the levels; less is sooner."""
        aged = (now_s - ticket.arrived_s) // (AGING_TARGETS * self.policy.max_latency_s)
        delayed = self.policy.priority_levels if ticket.expires_s <= now_s else 0
        return ticket.priority + delayed - aged

    def _ranked(self, now_s: float) -> list[tuple[Rank, Entry[Key]]]:
        ranked = [(self._level(e.ticket, now_s), e.ticket.deadline_s < now_s, *e.urgency, e) for e in self._ready]
        ranked.sort(key=lambda each: each[:4])
        return [(Rank(level, is_late), entry) for level, is_late, _, _, entry in ranked]

    # -- time ----------------------------------------------------------------------------------------------------

    def _limits(self) -> Limits:
        line, overhead = self.model.line, self.policy.overhead
        if line.token_s > 0:
            # What the task's own figure was on another machine, or on this one when it had more to itself.
            overhead = replace(overhead, tokens=max(overhead.tokens, round(line.fixed_s / line.token_s)))
        return Limits(self.policy.max_items, self._max_tokens(), overhead)

    def _max_tokens(self) -> int:
        """Most padded tokens of a pass: the configuration's, and what half of the target allows; at least one."""
        line = self.model.line
        allowed = inf
        if line.token_s > 0:
            allowed = (PASS_SHARE * self.policy.max_latency_s / self.model.margin - line.fixed_s) / line.token_s
        configured = inf if self.policy.max_tokens is None else self.policy.max_tokens
        return int(max(1, min(allowed, configured, 2**31)))

    def _hold(self, chosen: Pass[Key], now_s: float) -> float:
        """Until when the pass waits for what is being decoded; now where it does not."""
        is_full = len(chosen.entries) >= self.policy.max_items or chosen.tokens >= self._max_tokens()
        if is_full or not self._decoding:
            return now_s
        if self._held_since_s is None:
            self._held_since_s = now_s
        slack_s = min(entry.ticket.deadline_s for entry in chosen.entries) - self.model.cautious_s(chosen.tokens)
        return min(self._held_since_s + self.model.line.fixed_s, slack_s)

    def _ahead(self, priority: float, deadline_s: float, now_s: float) -> tuple[int, float]:
        """Items, and their tokens, that run before a newcomer."""
        items, tokens = 0, 0.0
        for entry in self._ready:
            if (self._level(entry.ticket, now_s), entry.ticket.deadline_s) <= (priority, deadline_s):
                items += 1
                tokens += entry.cost.length
        for ticket in self._decoding.values():
            if (self._level(ticket, now_s), ticket.deadline_s) <= (priority, deadline_s):
                items += ticket.items
                tokens += ticket.tokens
        return items, tokens

    def _drain_s(self, work: tuple[int, float]) -> float:
        """Seconds for so many items of so many tokens in all, in passes as large as may be."""
        items, tokens = work
        passes = max(ceil(items / self.policy.max_items), ceil(tokens / self._max_tokens()))
        return passes * self.model.line.fixed_s + tokens * self.model.line.token_s
