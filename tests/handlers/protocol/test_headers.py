"""A request's headers, and its terms for the scheduler."""

from math import inf
from typing import Any

import pytest

from handlers.errors import InvalidPriority, InvalidTimeout
from handlers.protocol.rows import read_headers
from handlers.protocol.terms import Terms


@pytest.mark.parametrize(
    ("headers", "parameters", "terms"),
    [
        ({"x-priority": "3", "X-TIMEOUT-MS": " 25e1 "}, {}, Terms(3, 0.25)),
        # A form's field of that name: TorchServe adds its part's headers to the request's.
        ({"x-priority": {"content-type": "text/plain"}, "Host": "x"}, {}, Terms(None, inf)),
        ({}, {"priority": 3, "timeout": 2**63 - 1}, Terms(3, (2**63 - 1) / 1e6)),
        # Triton's clients send these for none.
        ({}, {"priority": 0, "timeout": 0}, Terms(None, inf)),
        # A proxy may have set the header.
        ({"X-Priority": "3", "X-Timeout-Ms": "5"}, {"priority": 1, "timeout": 6_000}, Terms(3, 0.005)),
        ({"X-Timeout-Ms": "5"}, {"timeout": 4_000}, Terms(None, 0.004)),
    ],
)
def test_terms_are_the_headers_and_where_these_are_no_stricter_the_parameters(
    headers: dict[str, Any], parameters: dict[str, Any], terms: Terms
) -> None:
    assert Terms.of({**read_headers(headers), **parameters}, 3) == terms


@pytest.mark.parametrize("value", ["0", "4", "1.0", "first", "", "²", "１", "9" * 5000])
def test_header_that_is_no_level_or_time_is_invalid_and_not_quoted(value: str) -> None:
    with pytest.raises(InvalidPriority, match=r"^X-Priority must be a whole number from 1 \(first\) to 3\.$"):
        Terms.of({"x-priority": value}, 3)
    with pytest.raises(InvalidTimeout, match=r"^X-Timeout-Ms must be a number of milliseconds above 0\.$"):
        Terms.of({"x-timeout-ms": f"-{value}"}, 3)


@pytest.mark.parametrize("value", ["1_000", "\u0661", "0", "150ms"])
def test_timeout_is_a_number_as_http_writes_it(value: str) -> None:
    with pytest.raises(InvalidTimeout):
        Terms.of({"x-timeout-ms": value}, 3)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, [1], 10**400])
def test_parameters_that_are_no_level_or_time_are_invalid(value: Any) -> None:
    with pytest.raises(InvalidPriority, match=r"^priority must be a whole number from 1 \(first\) to 3, or 0 "):
        Terms.of({"priority": value}, 3)
    with pytest.raises(InvalidTimeout, match=r"^timeout must be a whole number of microseconds above 0, or 0 "):
        Terms.of({"timeout": value}, 3)


def test_headers_are_read_in_lower_case_apart_from_the_fields_of_a_form() -> None:
    sent = {"X-Api": "rerank", "Explain": "True", "explain": "False", "accept": {"content-type": "Text/Plain"}}
    headers = read_headers({**sent, "body": {"content-type": ""}})
    # TorchServe's own header wins over a client's in another case.
    assert headers == {"x-api": "rerank", "explain": "False"}
    assert headers.types == {"accept": "Text/Plain", "body": ""}
