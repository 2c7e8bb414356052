"""The requests of one worker that wait: admitted, decoding, ready; and their order. Pure.

Order: by level, then what can still be in time before what cannot, then earliest deadline. A request's level is its
priority, less one for every AGING_TARGETS times the latency target that it has waited, without end: whatever comes
later, a request is overtaken for a bounded time only.

Without a latency target nothing is late. `Policy.patience_s` stands for the target, and a request that names no time,
or a longer one, is due after that: a short time goes first, but not before requests that have waited for long. Levels
end at the first: older requests are due sooner there, and share micro-batches however long they have waited.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from handlers.batching.policy import Policy
from handlers.errors import ItemError
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.slots import Slot

# How long a request waits before it gains a level, in latency targets.
AGING_TARGETS = 2.0

# Where an item stands: the level that its request has aged to, less being sooner, and whether its deadline has passed.
Rank = tuple[float, bool]


@dataclass(slots=True, eq=False, kw_only=True)
class ScheduledRequest:
    """One request from its arrival to its answer.

    Each of its items that can be served is counted in one state at a time: decoding, queued, running, then none.

    Attributes:
        slots: one per item of the request; those that failed while it was unpacked hold their error.
        arrived_s: when it came.
        priority: level that its client asks for, 1 being first; None for the policy's default.
        timeout_s: how long its client waits for the answer; it can only shorten the policy's limits.
        level: priority that it was admitted with.
        number: how many came before it; ties are broken by it.
        deadline_s: when its answer is due.
        due_s: what it is ordered by within its level: its deadline, or without a target no later than the policy's
            patience allows.
        expires_s: when it stops waiting for its micro-batch.
        is_tried: whether it was admitted although its answer would be late, to find out.
        tokens: length of all its items together; an estimate until they are decoded.
        items: its items that are decoded and good, started or not.
        decoding, queued, running: items in each of these states.
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
    is_tried: bool = False
    tokens: float = 0.0
    items: list["QueuedItem"] = field(default_factory=list)
    decoding: int = 0
    queued: int = 0
    running: int = 0

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


@dataclass(slots=True)
class RequestQueue:
    """The items that have not started.

    Attributes:
        policy: what they are ordered by and expire by.
        ready: the items of requests that are decoded, in no order.
    """

    policy: Policy
    ready: list[QueuedItem] = field(default_factory=list)
    _decoding: dict[int, ScheduledRequest] = field(default_factory=dict)

    def add(self, request: ScheduledRequest) -> None:
        """Take in a request whose items are being decoded."""
        self._decoding[request.number] = request

    def decoded(self, request: ScheduledRequest, slot: Slot, cost: Cost | None) -> None:
        """Note that an item is decoded, or has failed where `cost` is None; with its last one a request is ready."""
        if request.number not in self._decoding:
            return  # it has expired, or was removed
        request.decoding -= 1
        if cost is not None:
            request.items.append(QueuedItem(request, slot, cost))
            request.queued += 1
        if not request.decoding:
            del self._decoding[request.number]
            request.tokens = sum(item.cost.length for item in request.items)
            self.ready += request.items

    def remove(self, request: ScheduledRequest) -> None:
        """Forget a request, decoded or not; what runs of it goes on."""
        self._decoding.pop(request.number, None)
        self.ready = [item for item in self.ready if item.request is not request]
        request.queued = 0

    def take(self, items: Iterable[QueuedItem]) -> None:
        """Remove items that start."""
        started = set(items)
        self.ready = [item for item in self.ready if item not in started]
        for item in started:
            item.request.queued -= 1
            item.request.running += 1

    # -- how much waits ------------------------------------------------------------------------------------------------

    @property
    def items(self) -> int:
        """How many items wait, decoded or not."""
        return len(self.ready) + sum(request.waiting for request in self._decoding.values())

    @property
    def ready_work(self) -> Work:
        """How much is ready to run."""
        return Work(len(self.ready), sum(item.cost.length for item in self.ready))

    def oldest_s(self, now_s: float) -> float:
        """Return for how many seconds the oldest ready item has been here; 0 without any."""
        return max((now_s - item.request.arrived_s for item in self.ready), default=0.0)

    def ahead(self, level: float, due_s: float, now_s: float) -> Work:
        """Return how much runs before a newcomer of that level that is due then."""
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

    # -- who waited too long -------------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> list[ScheduledRequest]:
        """Remove the requests that waited too long, where these are rejected; those with a started item go on."""
        expired = [request for request in self._waiting() if request.expires_s <= now_s]
        for request in expired:
            self.remove(request)
        return expired

    def next_expiry_s(self) -> float:
        """Return when `expire` may next have something to remove; infinity when never."""
        return min((request.expires_s for request in self._waiting()), default=inf)

    def _waiting(self) -> Iterable[ScheduledRequest]:
        """Return the requests that may expire, each once."""
        if not self.policy.is_late_rejected:
            return ()
        ready = dict.fromkeys(item.request for item in self.ready if not item.request.has_started)
        return (*ready, *self._decoding.values())

    # -- order ---------------------------------------------------------------------------------------------------------

    def ranked(self, now_s: float) -> list[tuple[Rank, QueuedItem]]:
        """List the ready items with their ranks, first come first: by rank, then earliest due, then first come."""
        has_target = self.policy.has_target
        ranked = [
            ((self._level(item.request, now_s), has_target and item.request.deadline_s < now_s), item)
            for item in self.ready
        ]
        return sorted(ranked, key=lambda each: (each[0], each[1].request.due_s, each[1].request.number))

    def _level(self, request: ScheduledRequest, now_s: float) -> float:
        """Return a request's place among the levels; less is sooner."""
        aged = (now_s - request.arrived_s) // (AGING_TARGETS * self.policy.patience_s)
        delayed = self.policy.priority_levels if request.expires_s <= now_s else 0
        level = request.level + delayed - aged
        return level if self.policy.has_target else max(1.0, level)
