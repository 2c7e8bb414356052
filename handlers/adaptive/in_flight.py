"""The requests that TorchServe's frontend waits for, each one object from its arrival to its answer. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from handlers.adaptive.streamed_answer import StreamedAnswer
from handlers.errors import ItemError
from handlers.protocol.requests import Request
from handlers.scheduling.admission import Refusal
from handlers.scheduling.request_queue import ScheduledRequest


@dataclass(slots=True, eq=False, kw_only=True)
class InFlightRequest(ScheduledRequest):
    """A scheduled request, and what its answer needs.

    Attributes:
        id: what the frontend knows it by.
        request: what it was unpacked to, without its payloads; says the form of the answer.
        is_admitted: whether the scheduler has taken it.
        retry_after_s: seconds after which a refused client may come again; None where it was not refused.
        stream: its answer, where that is sent in pieces; None where it is not.
    """

    id: str
    request: Request
    is_admitted: bool = False
    retry_after_s: float | None = None
    stream: StreamedAnswer | None = None

    def refuse(self, refusal: Refusal, status: int) -> None:
        """Answer it with the reason why it is not admitted."""
        self.fail(ItemError(status, refusal.reason, refusal.message))
        self.retry_after_s = refusal.retry_after_s


class Counts(NamedTuple):
    """How far the requests in flight have come.

    Attributes:
        in_flight: all of them.
        complete: those that could be answered now.
        refused: those of the complete ones that were not admitted for lack of time or room.
        oldest_refusal_s: when the first of the refused ones came; infinity where there is none.
        decoding: those with an item that is being decoded.
        streamed: those whose answer is sent in pieces.
    """

    in_flight: int
    complete: int
    refused: int
    oldest_refusal_s: float
    decoding: int
    streamed: int


@dataclass(slots=True)
class InFlight:
    """All requests that the frontend waits for."""

    _requests: dict[str, InFlightRequest] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._requests)

    def add(self, requests: Iterable[InFlightRequest]) -> None:
        """Take in requests that came."""
        self._requests.update((request.id, request) for request in requests)

    def take_complete(self, *, with_refused: bool = True) -> list[InFlightRequest]:
        """Remove those that can be answered, and hand them out; the refused ones too, or not yet."""
        complete = [
            request
            for request in self._requests.values()
            if request.is_complete and (with_refused or request.retry_after_s is None)
        ]
        for request in complete:
            del self._requests[request.id]
        return complete

    def take_missing(self, ids: Collection[str]) -> list[InFlightRequest]:
        """Remove those that the frontend waits for no more, as its message lacks them, and hand them out."""
        missing = [request for id_, request in self._requests.items() if id_ not in ids]
        for request in missing:
            del self._requests[request.id]
        return missing

    def count(self) -> Counts:
        """Tell how far they have come."""
        complete = refused = decoding = streamed = 0
        oldest_s = inf
        # Asked at every wake: each request is looked at once.
        for request in self._requests.values():
            if request.decoding:
                decoding += 1
            elif not (request.queued or request.running):
                complete += 1
                if request.retry_after_s is not None:
                    refused += 1
                    oldest_s = min(oldest_s, request.arrived_s)
            if request.stream is not None:
                streamed += 1
        return Counts(len(self._requests), complete, refused, oldest_s, decoding, streamed)
