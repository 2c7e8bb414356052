"""The requests of one worker that wait: admitted, decoding, ready; and their order. Pure.

A request is one object from its arrival to its answer, and so is each of its items:

    ScheduledRequest    what it asks for, when it is due, and how many of its items are in which state
    QueuedItem          one decoded item: the request, the slot that holds it, what it costs

Order: by level, then what can still be in time before what cannot, then earliest deadline. A request's level is its
priority, less one for every AGING_TARGETS times the latency target that it has waited, without end: whatever comes
later, a request is overtaken for a bounded time only.

Without a latency target nothing is late. `patience_s` stands for the target, and a request that names no time, or a
longer one, is due after that: who allows little goes first, but not before all who came long ago. Levels end at the
first: older ones are due sooner there, and those that waited for a while share micro-batches whatever they waited.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from handlers.errors import ItemError
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.slots import Slot
from handlers.scheduling.policy import Policy

# How long a request waits before it gains a level, in latency targets.
AGING_TARGETS = 2.0


@dataclass(slots=True, eq=False, kw_only=True)
class ScheduledRequest:
    """One request from its arrival to its answer.

    Each of its items that can be served is in one state at a time, and is counted there and nowhere else:

        decoding -> queued -> running -> done

    Attributes:
        slots: one per item of the request; those that failed while it was unpacked hold their error.
        arrived_s: when it came.
        priority: level that its client asks for, 1 being first; None for the policy's default.
        timeout_s: how long its client waits for the answer; it can only shorten the policy's limits.
        level: priority that it was admitted with.
        number: how many came before it; ties are broken by it.
        deadline_s: when its answer is due.
        due_s: what it is ordered by within its level: its deadline, or without a target no later than the queue's
            patience allows.
        expires_s: when it stops waiting for its micro-batch.
        predicted_s: how long its answer was predicted to take, from arrival on.
        tokens: length of all its items together; an estimate until they are decoded.
        items: its items that are decoded and good, started or not.
        decoding, queued, running: items in each of these states.
        finished_s: when the last of its micro-batches so far ended; None before the first.
    """

    slots: list[Slot]
    arrived_s: float
    priority: int | None = None
    timeout_s: float = inf
    level: int = 1
    number: int = -1
    deadline_s: float = inf
    due_s: float = inf
    expires_s: float = inf
    predicted_s: float = 0.0
    tokens: float = 0.0
    items: list["QueuedItem"] = field(default_factory=list)
    decoding: int = 0
    queued: int = 0
    running: int = 0
    finished_s: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it can be answered: none of its items is on its way."""
        return not (self.decoding or self.queued or self.running)

    @property
    def waiting(self) -> int:
        """How many of its items have not started."""
        return self.decoding + self.queued

    @property
    def has_started(self) -> bool:
        """Whether work of the engine was spent on it."""
        return self.queued < len(self.items)

    @property
    def urgency(self) -> tuple[float, int]:
        """What it is ordered by within a level: earliest due first, then first come."""
        return self.due_s, self.number

    def fail(self, error: ItemError) -> None:
        """Answer it with one error, whatever becomes of its items: a thread may be decoding one into its old slot."""
        self.slots = [Slot(error) for _ in self.slots]
        self.decoding = self.queued = self.running = 0


@dataclass(frozen=True, slots=True, eq=False)
class QueuedItem:
    """One decoded item: the request that it belongs to, the slot that holds it, and what it costs."""

    request: ScheduledRequest
    slot: Slot
    cost: Cost


class Work(NamedTuple):
    """An amount of it: items, and their tokens without padding."""

    items: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Rank:
    """Where an item stands in the queue.

    Attributes:
        level: the level that its request has aged to; less is sooner.
        is_late: whether its deadline has passed already.
    """

    level: float
    is_late: bool


@dataclass(slots=True)
class RequestQueue:
    """The items that have not started.

    Attributes:
        policy: what they are ordered by and expire by.
        patience_s: the latency target, or what stands for it.
        ready: the items of requests that are decoded, in no order.
        items: how many wait, decoded or not.
    """

    policy: Policy
    patience_s: float
    ready: list[QueuedItem] = field(default_factory=list)
    items: int = 0
    _ready_tokens: int = 0
    # Whether anybody who waits may wait too long.
    _may_expire: bool = False
    _decoding: dict[int, ScheduledRequest] = field(default_factory=dict)

    def add(self, request: ScheduledRequest) -> None:
        """Take in a request whose items are being decoded."""
        self._decoding[request.number] = request
        self.items += request.waiting
        self._may_expire |= request.expires_s < inf

    def decoded(self, request: ScheduledRequest, slot: Slot, cost: Cost | None) -> None:
        """Note that an item is decoded, or has failed where `cost` is None; with its last one a request is ready."""
        if request.number not in self._decoding:
            return  # it has expired, or was withdrawn
        request.decoding -= 1
        if cost is not None:
            request.items.append(QueuedItem(request, slot, cost))
            request.queued += 1
        else:
            self.items -= 1
        if not request.decoding:
            del self._decoding[request.number]
            request.tokens = sum(item.cost.length for item in request.items)
            self.ready += request.items
            self._ready_tokens += sum(item.cost.length for item in request.items)

    def withdraw(self, request: ScheduledRequest) -> None:
        """Forget a request that is still being decoded; the caller fails it."""
        if self._decoding.pop(request.number, None):
            self.items -= request.waiting

    def abandon(self, request: ScheduledRequest) -> None:
        """Forget a request, decoded or not."""
        self.withdraw(request)
        self._remove({item for item in self.ready if item.request is request})
        request.queued = 0

    def take(self, items: Iterable[QueuedItem]) -> None:
        """Remove items that start."""
        started = set(items)
        self._remove(started)
        for item in started:
            item.request.queued -= 1
            item.request.running += 1

    def _remove(self, items: Set[QueuedItem]) -> None:
        self.ready = [item for item in self.ready if item not in items]
        self.items -= len(items)
        self._may_expire &= self.items > 0
        self._ready_tokens -= sum(item.cost.length for item in items)

    # -- how much waits --------------------------------------------------------------------------------------------

    @property
    def ready_work(self) -> Work:
        """How much is ready to run."""
        return Work(len(self.ready), self._ready_tokens)

    @property
    def is_any_decoding(self) -> bool:
        """Whether a request is not decoded yet."""
        return bool(self._decoding)

    def oldest_s(self, now_s: float) -> float:
        """Tell for how many seconds the oldest ready item has been here; 0 without any."""
        return max((now_s - item.request.arrived_s for item in self.ready), default=0.0)

    def ahead(self, level: float, due_s: float, now_s: float) -> Work:
        """Tell how much runs before a newcomer of that level that is due then."""
        items, tokens = 0, 0.0
        for item in self.ready:
            if (self._level(item.request, now_s), item.request.due_s) <= (level, due_s):
                items += 1
                tokens += item.cost.length
        for request in self._decoding.values():
            if (self._level(request, now_s), request.due_s) <= (level, due_s):
                items += request.waiting
                tokens += request.tokens
        return Work(items, tokens)

    # -- who waited too long ---------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> list[ScheduledRequest]:
        """Remove the requests that waited too long, where these are rejected; those with a started item go on."""
        if not (self._may_expire and self.policy.is_late_rejected):
            return []
        late = dict.fromkeys(item.request for item in self.ready if item.request.expires_s <= now_s)
        expired = [request for request in late if not request.has_started]
        if expired:
            gone = set(expired)
            self._remove({item for item in self.ready if item.request in gone})
        undecoded = [request for request in self._decoding.values() if request.expires_s <= now_s]
        for request in undecoded:
            self.withdraw(request)
        return expired + undecoded

    def next_expiry_s(self) -> float:
        """Tell when `expire` may next have something to remove; infinity when never."""
        if not (self._may_expire and self.policy.is_late_rejected):
            return inf
        waiting = [item.request for item in self.ready if not item.request.has_started]
        return min((request.expires_s for request in (*waiting, *self._decoding.values())), default=inf)

    # -- order -----------------------------------------------------------------------------------------------------

    def ranked(self, now_s: float) -> list[tuple[Rank, QueuedItem]]:
        """List the ready items, first come first."""
        has_target = self.policy.has_target
        ranked = [
            (
                self._level(item.request, now_s),
                has_target and item.request.deadline_s < now_s,
                *item.request.urgency,
                item,
            )
            for item in self.ready
        ]
        ranked.sort(key=lambda each: each[:4])
        return [(Rank(level, is_late), item) for level, is_late, _, _, item in ranked]

    def _level(self, request: ScheduledRequest, now_s: float) -> float:
        """Tell a request's place among the levels; less is sooner."""
        aged = (now_s - request.arrived_s) // (AGING_TARGETS * self.patience_s)
        delayed = self.policy.priority_levels if request.expires_s <= now_s else 0
        level = request.level + delayed - aged
        return level if self.policy.has_target else max(1.0, level)
