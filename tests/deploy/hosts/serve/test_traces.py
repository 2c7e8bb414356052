"""Spans of one process and of a gateway in front of it, at a receiver of OTLP by the official messages."""

import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tritonclient.grpc import service_pb2

from deploy.hosts.serve.traces import Ended, spans_of
from deploy.models import ROOT
from load import sandbox
from tests.hosts import serving
from tests.tables import table
from tests.waiting import PATIENCE_S, until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@table(
    (f"00-{TRACE}-{PARENT}-01", TRACE, PARENT),
    (f"cc-{TRACE}-{PARENT}-03-more", TRACE, PARENT),  # of a later version
    (f"00-{TRACE}-{PARENT}-00", None, None),  # the client does not record it
    *((each, "", "") for each in ("", "x", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01")),
)
def test_spans_are_of_the_clients_trace(parent: str, trace: str | None, span: str | None) -> None:
    timing = 'total;dur=9.50, decode;dur=2.00, wait;dur=3.00, forward;dur=4.00, encode;dur=0.50, batch;desc="8"'
    found = [*spans_of(Ended("POST /x", parent, 0.011, 10**18, True, timing, {"a": 1, "b": "c"}))]
    assert [each.name for each in found] == ([] if trace is None else ["POST /x", "write", "run", "queue", "decode"])
    if found:
        root, *phases = found
        assert (trace or root.trace_id.hex(), span) == (root.trace_id.hex(), root.parent_span_id.hex())
        assert {(each.trace_id, each.parent_span_id) for each in phases} == {(root.trace_id, root.span_id)}
        lasted = [each.end_time_unix_nano - each.start_time_unix_nano for each in found]
        assert lasted == [11_000_000, 500_000, 4_000_000, 3_000_000, 2_000_000]
        assert root.status.code == 2 and root.attributes[0].value.int_value == 1


@contextmanager
def receiver() -> Iterator[tuple[str, list[Span]]]:
    """Collect spans until the block ends; its URL, and the spans."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Transfer-Encoding"):  # Envoy's
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size + 2)[:-2]
                self.rfile.readline()
            message = ExportTraceServiceRequest.FromString(body)
            spans.extend(each for of in message.resource_spans for scope in of.scope_spans for each in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.builds
def test_spans_of_gateway_and_process_are_one_chain_from_the_client(archive: Path, tmp_path: Path) -> None:
    with receiver() as (url, spans):
        log = tmp_path / "access.log"
        with serving(archive, "--access-log", log, folder=tmp_path, traces=url, notice_s=0) as host:
            with sandbox.run_gateway([host.node("node-1")], traces=url) as gateway:
                until(lambda: requests.get(f"{gateway.http}/v2/models/colours/ready", timeout=9).status_code == 200)
                trace = secrets.token_hex(16)
                headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
                asked = f"{gateway.http}/predictions/colours"
                assert requests.post(asked, json={"x": 4}, headers=headers, timeout=30).text == '{"y":8}'
                until(lambda: len(of(spans, trace)) == 6)
                outer, inner, *phases = of(spans, trace)
                assert (outer.parent_span_id.hex(), inner.parent_span_id) == (PARENT, outer.span_id)
                assert [(each.name, each.parent_span_id) for each in phases] == [
                    (name, inner.span_id) for name in ("decode", "queue", "run", "write")
                ]
            assert phases[2].end_time_unix_nano - phases[2].start_time_unix_nano >= 200_000_000
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            assert [each["trace_id"] for each in lines if each["method"] == "POST"] == [trace]
            called = secrets.token_hex(16)
            with grpc.insecure_channel(host.grpc) as channel:
                live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
                live(
                    service_pb2.ServerLiveRequest().SerializeToString(),
                    metadata=[("traceparent", f"00-{called}-{PARENT}-01")],
                )
            host.process.terminate()  # `end` sends a second signal, after which nothing is waited for
            host.process.wait(PATIENCE_S)
        # The last spans are sent before the process ends.
        assert [each.parent_span_id.hex() for each in of(spans, called)] == [PARENT]


def of(spans: list[Span], trace: str) -> list[Span]:
    """Return the spans of a trace: those of requests, outer first, then phases in their order."""
    found = [each for each in spans if each.trace_id.hex() == trace]
    return sorted(found, key=lambda each: (each.kind != Span.SPAN_KIND_SERVER, each.start_time_unix_nano))


@pytest.mark.builds
def test_process_without_traces_imports_nothing_for_them() -> None:
    code = "import sys, deploy.hosts.serve.__main__, deploy.hosts.serve.server, deploy.hosts.serve.app as app\n"
    code += "print([each for each in sys.modules if 'opentelemetry' in each or 'traces' in each], app.Host.log)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[] None\n"
