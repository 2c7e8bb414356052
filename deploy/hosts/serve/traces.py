"""Traces: a span of each request and spans of its phases, for a collector of OpenTelemetry by OTLP over HTTP.

a request's response -> Traces.note -> its thread: spans with the client's trace -> POST URL/v1/traces, once a second

Nothing imports this module unless the setting `traces` names a collector.
"""

import logging
import queue
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import urllib3
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from deploy.hosts.frontend.http import Message, Response, headers_of
from deploy.hosts.serve.access_log import TIMES, AccessLog

logger = logging.getLogger(__name__)

EVERY_S = 1.0  # seconds in which spans are collected
COLLECTOR_S = 5.0  # most seconds for the collector's answer
MOST_WAITING = 4096  # requests; more are not traced, so that a collector that hangs takes no memory
PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# A phase of Server-Timing, in the order of time -> the name of its span.
PHASES = {"decode": "decode", "wait": "queue", "forward": "run", "encode": "write"}
NAME = "torchserve-batching"


class Ended(NamedTuple):
    """A request whose response has been made."""

    name: str
    parent: str  # the header traceparent
    seconds: float
    end_ns: int
    is_failed: bool
    timing: str  # the header Server-Timing
    about: Mapping[str, str | int]


class Traces:
    """Notes requests as `AccessLog` does, which it has behind it, if any."""

    def __init__(self, url: str, log: AccessLog | None = None) -> None:
        self._log, self._url = log, f"{url}/v1/traces"
        self._ended = queue.Queue[Ended](MOST_WAITING)
        self._pool, self._closing = urllib3.PoolManager(timeout=COLLECTOR_S, retries=False), threading.Event()
        self._thread = threading.Thread(target=self._export, name="traces", daemon=True)
        self._thread.start()

    def note(self, scope: Message, answer: Response, request_id: str, began_s: float) -> None:
        if self._log is not None:
            self._log.note(scope, answer, request_id, began_s)
        about = {"http.request.method": scope["method"][:64], "url.path": scope["path"][:256]}
        status = {"http.response.status_code": answer.status, "request.id": request_id}
        parent, timing = headers_of(scope).get("traceparent", ""), answer.headers.get("Server-Timing", "")
        name = f"{about['http.request.method']} {about['url.path']}"
        seconds, about = time.perf_counter() - began_s, {**about, **status}
        self._put(Ended(name, parent, seconds, time.time_ns(), answer.status >= 500, timing, about))

    def note_call(self, context: Any, method: str, sizes: Sequence[int], request_id: str, began_s: float) -> None:
        if self._log is not None:
            self._log.note_call(context, method, sizes, request_id, began_s)
        code, parent = context.code(), dict(context.invocation_metadata()).get("traceparent", "")
        about = {"rpc.system": "grpc", "rpc.grpc.status_code": code.value[0] if code else 0, "request.id": request_id}
        seconds, is_failed = time.perf_counter() - began_s, bool(code and code.value[0])
        self._put(Ended(method, parent, seconds, time.time_ns(), is_failed, "", about))

    def close(self) -> None:
        """Send the last spans."""
        self._closing.set()
        self._thread.join(2 * COLLECTOR_S)

    def _put(self, ended: Ended) -> None:
        if not self._ended.full():
            self._ended.put_nowait(ended)

    def _export(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(EVERY_S)
            ended = [self._ended.get_nowait() for _ in range(self._ended.qsize())]
            if spans := [span for each in ended for span in spans_of(each)]:
                self._send(spans)

    def _send(self, spans: Sequence[Span]) -> None:
        message = ExportTraceServiceRequest()
        of = message.resource_spans.add()
        of.resource.attributes.add(key="service.name").value.string_value = NAME
        of.scope_spans.add(spans=spans).scope.name = NAME
        headers = {"Content-Type": "application/x-protobuf"}
        try:
            status = self._pool.request("POST", self._url, body=message.SerializeToString(), headers=headers).status
            problem = "" if status < 300 else f"it returned {status}"
        except urllib3.exceptions.HTTPError as error:
            problem = type(error).__name__
        if problem:
            logger.warning("traces: %s did not take %s spans: %s", self._url, len(spans), problem)


def spans_of(ended: Ended) -> Iterator[Span]:
    """Yield the spans of a request, in the client's trace if it has one; none if its client does not record it."""
    found = PARENT.fullmatch(ended.parent)
    if found and not int(found[3], 16) & 1:
        return
    trace = bytes.fromhex(found[1]) if found else secrets.token_bytes(16)
    parent = bytes.fromhex(found[2]) if found else b""
    begin_ns = ended.end_ns - round(ended.seconds * 1e9)
    root = Span(
        trace_id=trace, span_id=secrets.token_bytes(8), parent_span_id=parent, name=ended.name,
        kind=Span.SPAN_KIND_SERVER, start_time_unix_nano=begin_ns, end_time_unix_nano=ended.end_ns,
    )  # fmt: skip
    for key, value in ended.about.items():
        said = root.attributes.add(key=key).value
        setattr(said, "int_value" if isinstance(value, int) else "string_value", value)
    if ended.is_failed:
        root.status.code = Status.STATUS_CODE_ERROR
    yield root
    # Their durations are measured; they end with the response, and a body was read before them.
    ends_ns, lasted = ended.end_ns, dict(TIMES.findall(ended.timing))
    for phase in reversed([each for each in PHASES if each in lasted]):
        starts_ns = max(begin_ns, ends_ns - round(float(lasted[phase]) * 1e6))
        yield Span(
            trace_id=trace, span_id=secrets.token_bytes(8), parent_span_id=root.span_id, name=PHASES[phase],
            kind=Span.SPAN_KIND_INTERNAL, start_time_unix_nano=starts_ns, end_time_unix_nano=ends_ns,
        )  # fmt: skip
        ends_ns = starts_ns
