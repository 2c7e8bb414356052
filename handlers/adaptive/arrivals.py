"""What becomes of a request as it arrives: unpacked, then admitted or refused.

sent -> read -> Request -> arrived -> InFlightRequest: admitted, or complete with the error of its own
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from handlers.adaptive.decoder import Decoded
from handlers.adaptive.frontend import Sent
from handlers.adaptive.in_flight import InFlightRequest
from handlers.adaptive.length_estimate import LengthEstimate
from handlers.errors import INTERNAL_ERROR, InvalidInput, ItemError, where
from handlers.metrics import REFUSALS, Recorder
from handlers.pipeline.slots import Slot
from handlers.protocol.headers import Terms
from handlers.protocol.requests import Request
from handlers.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

Unpack = Callable[[Mapping[str, Any], Mapping[str, Any]], Request]


class Arrivals:
    """Takes requests in for one scheduler; but for `read`, its caller holds the scheduler's lock."""

    def __init__(self, unpack: Unpack, scheduler: Scheduler, recorder: Recorder, *, overload_status: int) -> None:
        """Expect requests.

        Args:
            unpack: makes a request of a row and its headers.
            scheduler: admits or refuses.
            recorder: counts refusals.
            overload_status: HTTP status of a request that is refused.
        """
        self._unpack = unpack
        self._scheduler = scheduler
        self._recorder = recorder
        self._overload_status = overload_status
        self._lengths = LengthEstimate()

    def read(self, sent: Sent) -> Request:
        """Unpack what a client sent; a bug becomes this request's own error."""
        try:
            return self._unpack(sent.row, sent.headers)
        except Exception as error:
            logger.error("A request failed: %s", where(error))
            return Request((INTERNAL_ERROR,))

    def arrived(self, id_: str, request: Request, headers: Mapping[str, Any], came_s: float) -> InFlightRequest:
        """Admit a request or refuse it; one that holds nothing to do is complete already."""
        slots = [Slot(payload) for payload in request.payloads]
        arrived = InFlightRequest(id=id_, request=request, slots=slots, arrived_s=came_s)
        if all(slot.is_failed for slot in slots):
            return arrived
        try:
            terms = Terms.of(headers, self._scheduler.policy.priority_levels)
        except InvalidInput as error:
            arrived.fail(ItemError.of(error))
            return arrived
        arrived.priority, arrived.timeout_s = terms.priority, terms.timeout_s
        refusal = self._scheduler.admit(arrived, self._lengths.expect(request.payloads))
        if refusal is None:
            arrived.is_admitted = True
        else:
            arrived.refuse(refusal, self._overload_status)
            self._recorder.add(REFUSALS, 1, refusal.reason)
        return arrived

    def decoded(self, items: Sequence[Decoded]) -> None:
        """Hand decoded items to the scheduler, and learn how long such payloads turn out to be."""
        lengths = [(item.size, item.cost.length) for item in items if item.cost is not None]
        self._lengths.learn([size for size, _ in lengths], [length for _, length in lengths])
        for item in items:
            self._scheduler.decoded(item.request, item.slot, item.cost)
