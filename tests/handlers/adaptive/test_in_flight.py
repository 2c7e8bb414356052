"""What a request asks of the schedule, and when it is answered."""

from math import inf
from typing import Any

import pytest

from handlers.adaptive.in_flight import Flight, Terms
from handlers.errors import EXPIRED, InvalidPriority, InvalidTimeout, ItemError
from handlers.pipeline.slots import Slot
from handlers.protocol.requests import Payload, Request


@pytest.mark.parametrize(
    ("headers", "terms"),
    [
        ({}, Terms(None, inf)),
        ({"X-Priority": "1"}, Terms(1, inf)),
        ({"x-priority": "3", "X-TIMEOUT-MS": "250"}, Terms(3, 0.25)),
        ({"X-Timeout-Ms": "0.5"}, Terms(None, 0.0005)),
        ({"x-timeout-ms": " 1e3 "}, Terms(None, 1.0)),
        # A form's field of that name comes among the headers as what its part's headers are.
        ({"x-priority": {"content-type": "text/plain"}, "Host": "x"}, Terms(None, inf)),
    ],
)
def test_terms_are_read_under_any_case(headers: dict[str, Any], terms: Terms) -> None:
    assert Terms.of(headers, 3) == terms


NO_PRIORITIES = ["0", "4", "-1", "1.0", "first", "", "²", "１", "1\n", "1,2"]
LONG_NO_PRIORITIES = ["0000000012", "9" * 5000, "000000001" * 600]


@pytest.mark.parametrize("value", NO_PRIORITIES + LONG_NO_PRIORITIES)
def test_terms_with_a_priority_that_is_no_level_are_invalid_and_quote_nothing(value: str) -> None:
    with pytest.raises(InvalidPriority) as raised:
        Terms.of({"X-Priority": value}, 3)
    assert str(raised.value) == "X-Priority must be a whole number from 1 (first) to 3."


@pytest.mark.parametrize("value", ["0", "-5", "nan", "inf", "-inf", "soon", "", "1e999", "5 ms"])
def test_terms_with_a_timeout_that_is_no_time_are_invalid_and_quote_nothing(value: str) -> None:
    with pytest.raises(InvalidTimeout) as raised:
        Terms.of({"X-Timeout-Ms": value}, 3)
    assert str(raised.value) == "X-Timeout-Ms must be a number of milliseconds above 0."


def flight(*outcomes: Payload | ItemError) -> Flight:
    return Flight(Request(outcomes), 5.0, [Slot(outcome) for outcome in outcomes])


def test_flight_is_complete_when_its_last_slot_is() -> None:
    ours = flight(Payload(b"a"), Payload(b"b"))
    ours.undecoded = ours.unfinished = 2
    ours.undecoded = 0
    assert not ours.is_complete
    ours.unfinished -= 2
    assert ours.is_complete


def test_flight_that_fails_is_complete_with_its_error_in_every_slot() -> None:
    ours = flight(Payload(b"a"), Payload(b"b"))
    ours.undecoded = ours.unfinished = 2
    ours.fail(EXPIRED, retry_after_s=0.3)
    assert ours.is_complete
    assert [slot.outcome.code for slot in ours.slots] == [504, 504]
    assert (ours.undecoded, ours.retry_after_s) == (0, 0.3)
