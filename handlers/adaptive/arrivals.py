"""What becomes of a request as it arrives: admitted or refused.

headers          -> turned_away -> refused before its body is read, where not even the least could be admitted; or None
Request, headers -> arrived     -> InFlightRequest: admitted, or complete with the error of its own

While requests are refused, a body that is one item (a photograph, a text) need not be read for it: where the least that
it can be would be refused, so would be what it is. What may hold several, or says in its body what it asks of the
scheduler, is read first, and refused in the form of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from handlers.adaptive.decoder import Decoded
from handlers.adaptive.in_flight import InFlightRequest
from handlers.adaptive.length_estimate import LengthEstimate
from handlers.adaptive.streamed_answer import StreamedAnswer
from handlers.config import HandlerConfig
from handlers.errors import INTERNAL_ERROR, InvalidInput, ItemError
from handlers.metrics import REFUSALS, Recorder
from handlers.pipeline.budget import excess
from handlers.pipeline.slots import Slot
from handlers.protocol.headers import Terms, is_grpc
from handlers.protocol.metadata import asks_for_metadata
from handlers.protocol.requests import Request, failed, is_one_item
from handlers.scheduling.admission import Refusal
from handlers.scheduling.scheduler import Scheduler


class Arrivals:
    """Takes requests in for one scheduler, whose lock the caller holds."""

    def __init__(self, scheduler: Scheduler, recorder: Recorder, config: HandlerConfig) -> None:
        """Expect requests.

        Args:
            scheduler: admits or refuses.
            recorder: counts refusals.
            config: what a request may ask for, and the status of one that is refused.
        """
        self._config = config
        self._scheduler = scheduler
        self._recorder = recorder
        self._lengths = LengthEstimate()
        # Whether the latest request that wanted something was refused: only then is it worth asking before reading.
        self._is_refusing = False

    def turned_away(self, id_: str, headers: Mapping[str, Any], now_s: float) -> InFlightRequest | None:
        """Refuse a request whose body has not been read yet; None where it must be.

        Args:
            id_: what the frontend knows it by.
            headers: the request's, and for its first field {"content-type": as sent}.
            now_s: the time.
        """
        if not self._is_refusing or asks_for_metadata(headers) or not is_one_item(headers):
            return None
        try:
            terms = Terms.of(headers, self._scheduler.policy.priority_levels)
        except InvalidInput:
            return None
        # An idle worker tries some of what it would refuse.
        if not (self._scheduler.waiting_items or self._scheduler.running_batches):
            return None
        # How it would fail whole, whatever its body holds.
        request = replace(failed(headers, INTERNAL_ERROR), payloads=(), is_grpc=is_grpc(headers), came_s=now_s)
        arrived = InFlightRequest(id=id_, request=request, slots=[Slot(None)], arrived_s=now_s)
        arrived.priority, arrived.timeout_s = terms.priority, terms.timeout_s
        refusal = self._scheduler.admit(arrived, 1.0)
        if refusal is None:
            self._scheduler.withdraw(arrived)
            return None
        self._refuse(arrived, refusal)
        return arrived

    def arrived(self, id_: str, request: Request, headers: Mapping[str, Any], came_s: float) -> InFlightRequest:
        """Admit a request or refuse it; one that holds nothing to do is complete already."""
        slots = [Slot(payload) for payload in request.payloads]
        # Each payload lives until it is decoded, in its slot, and no longer.
        arrived = InFlightRequest(id=id_, request=replace(request, payloads=()), slots=slots, arrived_s=came_s)
        if request.is_streamed:
            arrived.stream = StreamedAnswer()
        if all(slot.is_failed for slot in slots):
            return arrived
        try:
            terms = Terms.of(headers, self._scheduler.policy.priority_levels, request.terms)
        except InvalidInput as error:
            arrived.fail(ItemError.of(error))
            return arrived
        arrived.priority, arrived.timeout_s = terms.priority, terms.timeout_s
        refusal = self._scheduler.admit(arrived, self._lengths.expect(request.payloads))
        self._is_refusing = refusal is not None
        if refusal is None:
            arrived.is_admitted = True
        else:
            self._refuse(arrived, refusal)
        return arrived

    def _refuse(self, request: InFlightRequest, refusal: Refusal) -> None:
        request.refuse(refusal, self._config.scheduling.overload_status)
        self._recorder.add(REFUSALS, 1, refusal.reason)

    def decoded(self, items: Sequence[Decoded]) -> None:
        """Hand decoded items to the scheduler, and learn how long such payloads turn out to be."""
        lengths = [(item.size, item.cost.length) for item in items if item.cost is not None]
        self._lengths.learn([size for size, _ in lengths], [length for _, length in lengths])
        for item in items:
            if error := self._excess(item):
                self._scheduler.withdraw(item.request)
                item.request.fail(error)
            else:
                self._scheduler.decoded(item.request, item.slot, item.cost)

    def _excess(self, item: Decoded) -> ItemError | None:
        """Tell whether the items of its request are too much together, once the last of them is decoded."""
        request = item.request
        if request.decoding != 1 or len(request.slots) == 1:
            return None
        costs = [queued.cost for queued in request.items]
        outcomes = (slot.outcome for slot in request.slots)
        return excess(outcomes, costs if item.cost is None else [*costs, item.cost], self._config)
