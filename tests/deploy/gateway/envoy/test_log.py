"""The access log, and the trace context that clients, nodes and the log share."""

import re
import uuid

import pytest

from tests.deploy.gateway.envoy.conftest import KEY
from tests.deploy.gateway.envoy.harness import Gateway

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"
WRITTEN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def test_access_log_describes_a_request_without_its_payload(strict: Gateway) -> None:
    headers = {**KEY, "X-Request-Id": "my-own-id"}
    strict.received("POST", "/v2/models/m/versions/1/infer?secret=my-own-query", data=b"my-own-body", headers=headers)
    line = strict.logged(request_id="my-own-id")
    assert line["node"].startswith("node-")
    expected = {
        "client": "alice", "method": "POST", "path": "/v2/models/m/versions/1/infer", "status": 200, "model": "m",
        "version": "1.0", "batch_size": 8, "decode_ms": 1.61, "wait_ms": 2.4, "forward_ms": 178.2, "encode_ms": 0.04,
        "bytes_in": 11, "attempts": 1,
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    text = (strict.run / "access.log").read_text()
    assert [secret for secret in ("my-own-query", "my-own-body") if secret in text] == []


def traced(gateway: Gateway, **headers: str) -> tuple[str, str, dict[str, str]]:
    """Ask a node: return trace and parent as it got them, and all its headers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    got = gateway.received("POST", "/predictions/m", headers=named)["headers"]
    match = WRITTEN.fullmatch(got["traceparent"])
    assert match, got["traceparent"]
    assert not got.keys() & {"x-envoy-traceparent", "x-envoy-tracestate"}
    return match[1], match[2], got


def test_clients_trace_is_passed_on_with_the_gateways_own_span_and_logged(gateway: Gateway) -> None:
    name = str(uuid.uuid4())
    trace, span, got = traced(gateway, traceparent=GOOD, tracestate="vendor=value,other=1", x_request_id=name)
    # The name as it was sent: Envoy would write into it that it traces.
    assert (trace, got["tracestate"], got["x-request-id"]) == (TRACE, "vendor=value,other=1", name)
    assert span != PARENT
    line = gateway.logged(request_id=name)
    assert (line["trace_id"], line["span_id"]) == (trace, span)
    # What the gateway answers itself is in the log too, and its client is told its name.
    answer = gateway.ask("GET", "/nothing/here", headers={"traceparent": GOOD, "X-Request-Id": "a-404"})
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (404, "a-404")
    assert gateway.logged(request_id="a-404")["trace_id"] == TRACE


@pytest.mark.parametrize(
    "broken",
    [
        "nonsense",
        f"00-{TRACE}-{PARENT}",
        f"{GOOD}-more",
        GOOD.upper(),
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE[:-1]}-{PARENT}0-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        # Envoy joins two of a name with a comma.
        f"{GOOD},{GOOD}",
    ],
)
def test_broken_trace_is_replaced(gateway: Gateway, broken: str) -> None:
    trace, _, got = traced(gateway, traceparent=broken, tracestate="vendor=value")
    assert trace != TRACE
    assert "vendor=value" not in got.values()


def test_client_cannot_pass_the_check_by_the_names_it_uses(gateway: Gateway) -> None:
    assert traced(gateway, x_envoy_traceparent=GOOD, x_envoy_tracestate="vendor=value")[0] != TRACE
