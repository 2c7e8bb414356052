"""How far requests have come, and when they can be answered."""

from math import inf

from handlers.adaptive.in_flight import Counts, InFlight, InFlightRequest
from handlers.errors import EXPIRED, ItemError
from handlers.pipeline.slots import Slot
from handlers.protocol.requests import Payload, Request
from handlers.scheduling.admission import Refusal


def in_flight_request(id_: str, *outcomes: Payload | ItemError, arrived_s: float = 5.0) -> InFlightRequest:
    slots = [Slot(outcome) for outcome in outcomes]
    return InFlightRequest(id=id_, request=Request(outcomes), slots=slots, arrived_s=arrived_s)


def test_request_is_complete_when_no_item_of_it_is_on_its_way() -> None:
    ours = in_flight_request("a", Payload(b"a"), Payload(b"b"))
    ours.decoding = 2
    assert not ours.is_complete
    ours.decoding, ours.queued = 0, 2
    assert not ours.is_complete
    ours.queued, ours.running = 0, 2
    assert not ours.is_complete
    ours.running -= 2
    assert ours.is_complete


def test_request_that_fails_is_complete_with_its_error_in_every_slot() -> None:
    ours = in_flight_request("a", Payload(b"a"), Payload(b"b"))
    ours.queued = 2
    ours.fail(EXPIRED)
    assert ours.is_complete
    assert [slot.outcome.code for slot in ours.slots] == [504, 504]
    assert ours.retry_after_s is None


def test_request_that_is_refused_says_why_and_when_to_come_again() -> None:
    ours = in_flight_request("a", Payload(b"a"))
    ours.refuse(Refusal("Overloaded", "Too late.", 0.3), status=429)
    assert ours.is_complete
    assert ours.slots[0].outcome == ItemError(429, "Overloaded", "Too late.")
    assert ours.retry_after_s == 0.3


def test_in_flight_counts_what_is_complete_refused_and_decoding_and_hands_out_the_complete() -> None:
    ours = InFlight()
    done, refused, late, decoding = (
        in_flight_request(name, Payload(b"x"), arrived_s=arrived_s)
        for name, arrived_s in (("done", 1.0), ("refused", 3.0), ("late", 2.0), ("decoding", 4.0))
    )
    for request in (refused, late):
        request.refuse(Refusal("QueueFull", "Full.", 1.0), status=503)
    decoding.decoding = 1
    ours.add([done, refused, late, decoding])
    assert ours.count() == Counts(in_flight=4, complete=3, refused=2, oldest_refusal_s=2.0, decoding=1, streamed=0)
    assert ours.take_complete(with_refused=False) == [done]
    assert ours.take_complete() == [refused, late]
    assert ours.count() == Counts(in_flight=1, complete=0, refused=0, oldest_refusal_s=inf, decoding=1, streamed=0)
    assert ours.take_complete() == []
    assert len(ours) == 1
