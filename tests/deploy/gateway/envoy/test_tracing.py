"""Trace context on a real Envoy: what a client sends, what a node gets, what the access log has."""

import re
import uuid

import pytest

from tests.deploy.gateway.envoy.harness import Gateway, wait

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
WRITTEN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def traced(gateway: Gateway, **headers: str) -> tuple[str, str, dict[str, str]]:
    """Ask a node: trace and parent as it got them, and all its headers; the log has the same trace and span."""
    request_id = str(uuid.uuid4())
    named = {key.replace("_", "-"): value for key, value in headers.items()} | {"X-Request-Id": request_id}
    answer = gateway.ask("POST", "/predictions/m", data=b"x", headers=named)
    assert answer.status_code == 200
    # As it was sent: Envoy would write into it that it traces.
    assert answer.headers["X-Request-Id"] == request_id
    got = {key.lower(): value for key, value in answer.json()["headers"].items()}
    match = WRITTEN.fullmatch(got["traceparent"])
    assert match, got["traceparent"]
    wait(lambda: any(line["request_id"] == request_id for line in gateway.log()))
    (line,) = (line for line in gateway.log() if line["request_id"] == request_id)
    assert (line["trace_id"], line["span_id"]) == match.groups()
    assert not got.keys() & {"x-envoy-traceparent", "x-envoy-tracestate"}
    return match[1], match[2], got


def test_clients_trace_is_passed_on_with_the_gateways_own_span(gateway: Gateway) -> None:
    trace, span, got = traced(gateway, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=value,other=1")
    assert trace == TRACE
    assert span != PARENT
    assert got["tracestate"] == "vendor=value,other=1"


def test_request_without_a_trace_gets_one_of_its_own(gateway: Gateway) -> None:
    first, second = traced(gateway)[0], traced(gateway)[0]
    assert first != second
    assert int(first, 16) and int(second, 16)


@pytest.mark.parametrize(
    "broken",
    [
        "nonsense",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE[:-1]}-{PARENT}0-01",
        f"00-{TRACE}0-{PARENT[:-1]}-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        "x" * 2000,
    ],
)
def test_broken_trace_is_replaced(gateway: Gateway, broken: str) -> None:
    trace, _, got = traced(gateway, traceparent=broken, tracestate="vendor=value")
    assert trace != TRACE
    assert "vendor=value" not in got.values()


def test_client_cannot_pass_the_check_by_the_names_it_uses(gateway: Gateway) -> None:
    hidden = f"00-{TRACE}-{PARENT}-01"
    assert traced(gateway, x_envoy_traceparent=hidden, x_envoy_tracestate="vendor=value")[0] != TRACE


def test_two_traces_are_none(gateway: Gateway) -> None:
    """Envoy joins them with a comma, and that is no traceparent."""
    both = f"00-{TRACE}-{PARENT}-01,00-{TRACE}-{PARENT}-01"
    assert traced(gateway, traceparent=both)[0] != TRACE


def test_errors_of_the_gateway_are_logged_with_the_clients_trace(gateway: Gateway) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "an-error-of-a-trace"}
    answer = gateway.ask("GET", "/nothing/here", headers=headers)
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (404, "an-error-of-a-trace")
    wait(lambda: any(line["request_id"] == "an-error-of-a-trace" for line in gateway.log()))
    (line,) = (line for line in gateway.log() if line["request_id"] == "an-error-of-a-trace")
    assert line["trace_id"] == TRACE
