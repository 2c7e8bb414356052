"""The access log, and the trace context that clients, nodes and the log share."""

import json
import uuid

from tests.deploy.gateway.envoy.conftest import KEY
from tests.deploy.gateway.envoy.harness import Gateway

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GOOD = f"00-{TRACE}-00f067aa0ba902b7-01"


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
    # An adaptive worker's begins with the total.
    timing = 'total;dur=9.25, decode;dur=1, wait;dur=2, forward;dur=3, encode;dur=4, batch;desc="5"'
    for node in strict.nodes:
        node.answers["timed"] = (200, {"Server-Timing": timing}, b"")
    strict.ask("POST", "/predictions/m", headers={**KEY, "X-Do": "timed", "X-Request-Id": "timed"})
    line = strict.logged(request_id="timed")
    parts = ("total_ms", "decode_ms", "wait_ms", "forward_ms", "encode_ms", "batch_size")
    assert [line[name] for name in parts] == [9.25, 1, 2, 3, 4, 5]
    text = (strict.run / "access.log").read_text()
    assert [secret for secret in ("my-own-query", "my-own-body") if secret in text] == []


def test_refusals_line_is_bounded_whatever_its_client_sends(strict: Gateway) -> None:
    headers = {"X-Request-Id": "i" * 500, "traceparent": "t" * 500}
    assert strict.ask("POST", "/" + "p" * 1000, headers=headers).status_code == 401
    line = strict.logged(status=401, request_id="i" * 64)
    assert len(json.dumps(line)) < 1200


def test_clients_trace_reaches_the_node_as_it_came_and_is_logged(gateway: Gateway) -> None:
    name = str(uuid.uuid4())
    headers = {"traceparent": GOOD, "tracestate": "vendor=value,other=1", "X-Request-Id": name}
    got = gateway.received("POST", "/predictions/m", headers=headers)["headers"]
    assert (got["traceparent"], got["tracestate"], got["x-request-id"]) == (GOOD, headers["tracestate"], name)
    assert gateway.logged(request_id=name)["trace_id"] == TRACE
    # What the gateway answers itself is in the log too, and its client is told its name.
    answer = gateway.ask("GET", "/nothing/here", headers={"traceparent": GOOD, "X-Request-Id": "a-404"})
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (404, "a-404")
    assert gateway.logged(request_id="a-404")["trace_id"] == TRACE
    # A request that asks for no trace has none.
    assert "traceparent" not in gateway.received("POST", "/predictions/m")["headers"]
