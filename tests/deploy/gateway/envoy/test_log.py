"""The access log, and the trace context that clients, nodes and the log share."""

import json
import uuid
from typing import Any

from deploy.gateway.envoy.process import ask
from tests.deploy.gateway.envoy.conftest import ALICE, DAVE, KEY
from tests.deploy.gateway.envoy.harness import Gateway, wait

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


def test_refusals_name_their_client_in_the_log_and_are_counted(strict: Gateway) -> None:
    """The refusals in docs/reference/errors.md: status, client, details, and the series that counts them."""

    def count(client: str, status: int, attempts: int = 0, flags: str = "-", grpc_status: str = "") -> float:
        """Of the counter that the gateway's metrics port returns; 0 before the first."""
        values = {"client": client, "status": status, "grpc_status": grpc_status, "attempts": attempts, "flags": flags}
        labels = ",".join(f'{name}="{value}"' for name, value in values.items())
        lines = ask(strict.run, "/stats/prometheus").splitlines()
        found = [line for line in lines if line.startswith(f"envoy_gateway_errors{{{labels}}}")]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def refused(
        name: str, client: str, status: int, details: str, *, attempts: int = 0, flags: str = "-", **request: Any
    ) -> None:
        before = count(client, status, attempts, flags)
        key = {"alice": ALICE, "dave": DAVE}.get(client)
        given = {} if key is None else {"Authorization": f"Bearer {key}"}
        headers = {**request.pop("headers", {}), **given, "X-Request-Id": name}
        assert strict.ask("POST", "/predictions/m", headers=headers, **request).status_code == status
        line = strict.logged(request_id=name)
        assert (line["client"] or "", line["status"], line["details"]) == (client, status, details)
        wait(lambda: count(client, status, attempts, flags) == before + 1)

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for node in strict.nodes:
        node.answers["busy"] = (503, {"Retry-After": "1"}, b'{"code": 503, "type": "QueueFull", "message": "m"}')
    refused("nobody", "", 401, "lua_response")
    refused("large", "alice", 413, "request_payload_too_large", data=bytes(2 << 20))
    refused("form", "alice", 413, "lua_response", data=b"x" * 1001, headers=form)
    refused("busy", "alice", 503, "via_upstream", attempts=1, headers={"X-Do": "busy"})
    authorization = {"Authorization": f"Bearer {DAVE}"}
    assert strict.ask("POST", "/predictions/m", headers=authorization).status_code == 200
    refused("often", "dave", 429, "local_rate_limited", flags="RL")
    strict.call("ModelInfer", b"\x0a\x01m", authorization=f"Bearer {DAVE}")
    before = count("dave", 200, 0, "RL", "8")
    assert strict.refused("ModelInfer", b"\x0a\x01m", authorization=f"Bearer {DAVE}")[0] == 8
    wait(lambda: count("dave", 200, 0, "RL", "8") == before + 1)


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
    # The gateway's own responses are in the log too, and contain the client's name.
    answer = gateway.ask("GET", "/nothing/here", headers={"traceparent": GOOD, "X-Request-Id": "a-404"})
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (404, "a-404")
    assert gateway.logged(request_id="a-404")["trace_id"] == TRACE
    # A request that asks for no trace has none.
    assert "traceparent" not in gateway.received("POST", "/predictions/m")["headers"]
