"""The requests of one worker that wait: accepted, decoding, ready; and their order. Pure.

Order: by level, then what can still be in time before what cannot, then earliest deadline. A request's level is its
priority, less one for every AGING_TARGETS times the latency target that it has waited, without end: whatever comes
later, a request is overtaken for a bounded time only.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from handlers.pipeline.micro_batches import Cost
from handlers.scheduling.batch_selection import Entry, Rank, Ticket
from handlers.scheduling.policy import Policy

Key = TypeVar("Key")

AGING_TARGETS = 2.0


@dataclass(slots=True)
class Waiting(Generic[Key]):
    """Items that have not started.

    Attributes:
        policy: what they are ordered and expire by.
        ready: decoded items, in no order.
    """

    policy: Policy
    ready: list[Entry[Key]] = field(default_factory=list)
    _decoding: dict[int, Ticket] = field(default_factory=dict)

    def add(self, ticket: Ticket) -> None:
        """Accepted; its items are being decoded."""
        self._decoding[ticket.number] = ticket

    def decoded(self, ticket: Ticket, items: Iterable[tuple[Key, Cost]]) -> None:
        """Its items are ready: those that could be decoded, none maybe."""
        del self._decoding[ticket.number]
        entries = [Entry(key, ticket, cost) for key, cost in items]
        ticket.items = ticket.waiting = len(entries)
        ticket.tokens = sum(entry.cost.length for entry in entries)
        self.ready += entries

    def take(self, entries: Iterable[Entry[Key]]) -> None:
        """These start."""
        started = set(entries)
        self.ready = [entry for entry in self.ready if entry not in started]
        for entry in started:
            entry.ticket.waiting -= 1

    # -- how much ------------------------------------------------------------------------------------------------

    @property
    def items(self) -> int:
        """Of requests that are decoded or not."""
        return len(self.ready) + sum(ticket.items for ticket in self._decoding.values())

    @property
    def ready_tokens(self) -> int:
        """Of the ready items together, without padding."""
        return sum(entry.cost.length for entry in self.ready)

    @property
    def is_any_decoding(self) -> bool:
        """Whether a request is not decoded yet."""
        return bool(self._decoding)

    def oldest_s(self, now_s: float) -> float:
        """How long the oldest ready item has been here; 0 without any."""
        return max((now_s - entry.ticket.arrived_s for entry in self.ready), default=0.0)

    def ahead(self, priority: float, deadline_s: float, now_s: float) -> tuple[int, float]:
        """Items, and their tokens, that run before a newcomer."""
        items, tokens = 0, 0.0
        for entry in self.ready:
            if (self._level(entry.ticket, now_s), entry.ticket.deadline_s) <= (priority, deadline_s):
                items += 1
                tokens += entry.cost.length
        for ticket in self._decoding.values():
            if (self._level(ticket, now_s), ticket.deadline_s) <= (priority, deadline_s):
                items += ticket.items
                tokens += ticket.tokens
        return items, tokens

    # -- who waited too long -------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> list[Ticket]:
        """Remove the tickets that waited too long, where these are rejected; those with a started item go on."""
        if not self.policy.is_late_rejected:
            return []
        tickets = dict.fromkeys(e.ticket for e in self.ready if e.ticket.expires_s <= now_s)
        expired = [ticket for ticket in tickets if ticket.waiting == ticket.items]
        if expired:
            gone = set(expired)
            self.ready = [entry for entry in self.ready if entry.ticket not in gone]
        return expired

    def next_expiry_s(self) -> float:
        """When `expire` may next have something to remove; infinity when never."""
        if not self.policy.is_late_rejected:
            return inf
        return min((e.ticket.expires_s for e in self.ready if e.ticket.waiting == e.ticket.items), default=inf)

    # -- order ---------------------------------------------------------------------------------------------------

    def ranked(self, now_s: float) -> list[tuple[Rank, Entry[Key]]]:
        """The ready items, first come first."""
        ranked = [(self._level(e.ticket, now_s), e.ticket.deadline_s < now_s, *e.urgency, e) for e in self.ready]
        ranked.sort(key=lambda each: each[:4])
        return [(Rank(level, is_late), entry) for level, is_late, _, _, entry in ranked]

    def _level(self, ticket: Ticket, now_s: float) -> float:
        """Its place among the levels; less is sooner."""
        aged = (now_s - ticket.arrived_s) // (AGING_TARGETS * self.policy.max_latency_s)
        delayed = self.policy.priority_levels if ticket.expires_s <= now_s else 0
        return ticket.priority + delayed - aged
