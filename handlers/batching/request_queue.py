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
from handlers.protocol.requests import Request, Slot

# How long a request waits before it gains a level, in latency targets.
AGING_TARGETS = 2.0

# Where an item stands: the level that its request has aged to, less being sooner, and whether its deadline has passed.
Rank = tuple[float, bool]


class Work(NamedTuple):
    """An amount of it: items, and their tokens without padding."""

    items: int
    tokens: float


@dataclass(slots=True)
class RequestQueue:
    """The items that have not started: a slot each, which knows its request."""

    policy: Policy
    ready: list[Slot] = field(default_factory=list)  # of requests that are decoded, in no order
    patience_s: float = field(init=False)  # see `Policy.patience_s`
    _has_target: bool = field(init=False)
    _decoding: dict[int, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.patience_s, self._has_target = self.policy.patience_s, self.policy.has_target

    def add(self, request: Request) -> None:
        """Take in a request whose items are being decoded."""
        self._decoding[request.number] = request

    def decoded(self, slot: Slot) -> None:
        """Note that an item is decoded, or has failed; with its last one a request is ready."""
        request = slot.request
        if request.number not in self._decoding:
            return  # it has expired, or was removed
        request.decoding -= 1
        if not isinstance(slot.outcome, ItemError):
            request.queued += 1
        if not request.decoding:
            del self._decoding[request.number]
            good = [each for each in request.slots if not isinstance(each.outcome, ItemError)]
            request.work = sum(each.cost.length for each in good)
            self.ready += good

    def remove(self, request: Request) -> None:
        """Forget a request, decoded or not; what runs of it goes on."""
        self._decoding.pop(request.number, None)
        self.ready = [item for item in self.ready if item.request is not request]
        request.decoding = request.queued = 0

    def take(self, items: Iterable[Slot]) -> None:
        """Remove items that start."""
        started = set(items)
        self.ready = [item for item in self.ready if item not in started]
        for item in started:
            item.request.queued -= 1
            item.request.running += 1
            item.request.has_started = True

    # -- how much waits ------------------------------------------------------------------------------------------------

    @property
    def items(self) -> int:
        """How many items wait, decoded or not."""
        return len(self.ready) + sum(request.decoding + request.queued for request in self._decoding.values())

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
            request = item.request
            if (self._level(request, now_s), request.due_s) <= (level, due_s):
                items += 1
                tokens += item.cost.length
        for request in self._decoding.values():
            if (self._level(request, now_s), request.due_s) <= (level, due_s):
                items += request.decoding + request.queued
                tokens += request.work
        return Work(items, tokens)

    # -- who waited too long -------------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> list[Request]:
        """Remove the requests that waited too long, where these are rejected; those with a started item go on."""
        expired = [request for request in self._waiting() if request.expires_s <= now_s]
        for request in expired:
            self.remove(request)
        return expired

    def next_expiry_s(self) -> float:
        """Return when `expire` may next have something to remove; infinity when never."""
        return min((request.expires_s for request in self._waiting()), default=inf)

    def _waiting(self) -> Iterable[Request]:
        """Return the requests that may expire, each once."""
        if not self.policy.is_late_rejected:
            return ()
        ready = dict.fromkeys(item.request for item in self.ready if not item.request.has_started)
        return (*ready, *self._decoding.values())

    # -- order ---------------------------------------------------------------------------------------------------------

    def ranked(self, now_s: float) -> list[tuple[Rank, Slot]]:
        """List the ready items with their ranks, first come first: by rank, then earliest due, then first come."""
        has_target = self._has_target
        ranked = [
            ((self._level(item.request, now_s), has_target and item.request.deadline_s < now_s), item)
            for item in self.ready
        ]
        return sorted(ranked, key=lambda each: (each[0], each[1].request.due_s, each[1].request.number))

    def _level(self, request: Request, now_s: float) -> float:
        """Return a request's place among the levels; less is sooner."""
        aged = (now_s - request.arrived_s) // (AGING_TARGETS * self.patience_s)
        delayed = self.policy.priority_levels if request.expires_s <= now_s else 0
        level = request.level + delayed - aged
        return level if self._has_target else max(1.0, level)
