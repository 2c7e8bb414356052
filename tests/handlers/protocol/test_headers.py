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
    ("headers", "parameters", "terms"),
    [
        ({}, {"priority": 1}, Terms(1, inf)),
        ({}, {"timeout": 1_500}, Terms(None, 0.0015)),
        ({}, {"priority": 3, "timeout": 2**63 - 1}, Terms(3, (2**63 - 1) / 1e6)),
        # Triton's clients send these for what is not asked.
        ({}, {"priority": 0, "timeout": 0}, Terms(None, inf)),
        # A proxy may have set the header, whatever the client asks for.
        ({"X-Priority": "3"}, {"priority": 1}, Terms(3, inf)),
        ({"X-Timeout-Ms": "5"}, {"timeout": 6_000}, Terms(None, 0.005)),
        ({"X-Timeout-Ms": "5"}, {"timeout": 4_000}, Terms(None, 0.004)),
    ],
)
def test_terms_of_the_protocols_parameters_hold_where_headers_say_nothing_stricter(
    headers: dict[str, str], parameters: dict[str, Any], terms: Terms
) -> None:
    assert Terms.of(headers, 3, parameters) == terms


@pytest.mark.parametrize("value", [4, -1, 1.0, True, "1", "", None, [1], 10**400])
def test_terms_with_a_priority_parameter_that_is_no_level_are_invalid(value: Any) -> None:
    with pytest.raises(InvalidPriority, match=r"^priority must be a whole number from 1 \(first\) to 3, or 0 "):
        Terms.of({}, 3, {"priority": value})


@pytest.mark.parametrize("value", [-1, 0.5, True, "1", "", None, 2**64, 10**400])
def test_terms_with_a_timeout_parameter_that_is_no_time_are_invalid(value: Any) -> None:
    with pytest.raises(InvalidTimeout, match=r"^timeout must be a whole number of microseconds above 0, or 0 "):
        Terms.of({}, 3, {"timeout": value})


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
