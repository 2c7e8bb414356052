"""The waiting requests of one worker and their order: admitted, decoding, ready. Pure.

Order: by level, then requests that can still be in time before those that cannot, then earliest deadline. A request's
level is its priority, less one for every AGING_TARGETS latency targets that it has waited, without end. So other
requests overtake it for a bounded time only.

Without a latency target no request is late, and `Policy.patience_s` replaces the target. A request without a timeout,
or with a longer one, is due after that time: short timeouts go first, but not before requests that have waited longer.
Levels end at the first: older requests are due earlier there, and share micro-batches however long they have waited.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from handlers.batching.pending import Entry, Pending
from handlers.batching.policy import Policy

AGING_TARGETS = 2.0  # wait after which a request gains a level, in latency targets

# The level to which an item's request has aged, lower first, and whether its deadline has passed.
Rank = tuple[float, bool]


class Work(NamedTuple):
    """A number of items, and their tokens without padding."""

    items: int
    tokens: float


@dataclass(slots=True)
class RequestQueue:
    """The items that have not started: a slot each."""

    policy: Policy
    ready: list[Entry] = field(default_factory=list)  # of requests that are decoded, in no order
    patience_s: float = field(init=False)
    _has_target: bool = field(init=False)
    _decoding: dict[int, Pending] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.patience_s, self._has_target = self.policy.patience_s, self.policy.has_target

    def add(self, request: Pending) -> None:
        self._decoding[request.number] = request

    def end_decoding(self, slot: Entry) -> None:
        """Note that an item is decoded or has failed; a request is ready after its last item."""
        request = slot.request
        if request.number not in self._decoding:
            return  # it has expired, or was removed
        request.decoding -= 1
        if slot.error is None:
            request.queued += 1
        if not request.decoding:
            del self._decoding[request.number]
            good = [each for each in request.slots if each.is_open]
            request.work = sum(each.cost.length for each in good)
            self.ready += good

    def remove(self, request: Pending) -> None:
        """Remove a request; its running items go on."""
        self._decoding.pop(request.number, None)
        self.ready = [item for item in self.ready if item.request is not request]
        request.decoding = request.queued = 0

    def start(self, items: Iterable[Entry]) -> None:
        started = set(items)
        self.ready = [item for item in self.ready if item not in started]
        for item in started:
            item.request.queued -= 1
            item.request.running += 1
            item.request.has_started = True

    @property
    def items(self) -> int:
        return len(self.ready) + sum(request.decoding + request.queued for request in self._decoding.values())

    @property
    def ready_work(self) -> Work:
        return Work(len(self.ready), sum(item.cost.length for item in self.ready))

    def oldest_s(self, now_s: float) -> float:
        """Return the age of the oldest ready item in seconds; 0 without any."""
        return max((now_s - item.request.arrived_s for item in self.ready), default=0.0)

    def work_before(self, level: float, due_s: float, now_s: float) -> Work:
        """Return the work that runs before a new request of that level and due time."""
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

    def expire(self, now_s: float) -> list[Pending]:
        """Remove the requests that waited too long, if the policy rejects them; requests with a started item go on."""
        expired = [request for request in self._list_expirable() if request.expires_s <= now_s]
        for request in expired:
            self.remove(request)
        return expired

    def next_expiry_s(self) -> float:
        """Return when `expire` may next remove a request; infinity for never."""
        return min((request.expires_s for request in self._list_expirable()), default=inf)

    def _list_expirable(self) -> Iterable[Pending]:
        if not self.policy.is_late_rejected:
            return ()
        ready = dict.fromkeys(item.request for item in self.ready if not item.request.has_started)
        return (*ready, *self._decoding.values())

    def rank(self, now_s: float) -> tuple[list[tuple[Rank, Entry]], dict[Entry, list[Entry]]]:
        """List the ready items in order: by rank, then due time, then arrival; and by the first one those equal to it.

        The first has the others with it, so the list has only the first.
        """
        if len(self.ready) == 1:
            return [((0.0, False), self.ready[0])], {}
        has_target = self._has_target
        ranked = [
            ((self._level(item.request, now_s), has_target and item.request.deadline_s < now_s), item)
            for item in self.ready
        ]
        ranked.sort(key=lambda each: (each[0], each[1].request.due_s, each[1].request.number))
        firsts, equal = dict[Hashable, Entry](), dict[Entry, list[Entry]]()
        for _, item in ranked:
            if item.key is not None and (first := firsts.setdefault(item.key, item)) is not item:
                equal.setdefault(first, []).append(item)
        if equal:
            others = {each for items in equal.values() for each in items}
            ranked = [each for each in ranked if each[1] not in others]
        return ranked, equal

    def _level(self, request: Pending, now_s: float) -> float:
        aged = (now_s - request.arrived_s) // (AGING_TARGETS * self.patience_s)
        delayed = self.policy.priority_levels if request.expires_s <= now_s else 0
        level = request.level + delayed - aged
        return level if self._has_target else max(1.0, level)
