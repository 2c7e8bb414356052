"""What a request's headers ask of the scheduler."""

from math import inf
from typing import Any

import pytest

from handlers.errors import InvalidPriority, InvalidTimeout
from handlers.protocol.headers import Terms, is_grpc


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


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, True),
        # Fields of the row have their content types among the headers.
        ({"data": {"content-type": ""}}, True),
        ({"explain": "False"}, False),
        ({"explain": {"content-type": "text/plain"}, "Host": "localhost"}, False),
    ],
)
def test_request_without_any_header_came_by_grpc(headers: dict[str, Any], expected: bool) -> None:
    assert is_grpc(headers) is expected
