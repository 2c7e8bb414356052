"""Answers in pieces, as server-sent events (WHATWG HTML, 9.2): who asks for one, and how it is written. Pure.

Request, headers -> asked  -> Request, whose answer is streamed; or the error that says why it is not
text             -> piece  -> data: {"text": "..."}
Reply            -> last   -> data: {"translation_text": "..."}, what a plain request is answered with
                              event: error, data: {"code", "type", "message"}

TorchServe makes an HTTP chunk of every reply that says `ts_stream_next`. The first reply to a request writes the head
of the answer; it must never be the last one too, or no head is written and its client hangs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from handlers.errors import ItemError, UnknownOption
from handlers.protocol.headers import STREAM_NEXT, header, is_grpc
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import OneItem, Reply, encode

OPTION = "stream"
MEDIA_TYPE = "text/event-stream"
# A proxy that keeps answers keeps no stream.
HEADERS = {"Cache-Control": "no-cache"}


def asked(request: Request, headers: Mapping[str, Any], *, is_adaptive: bool) -> Request:
    """Find out whether the answer to a request is to be streamed."""
    payloads = [payload for payload in request.payloads if isinstance(payload, Payload)]
    options = [payload.options[OPTION] for payload in payloads if OPTION in payload.options]
    accepts_events = MEDIA_TYPE in (header(headers, "Accept") or "").lower()
    if not payloads or not (any(value is True for value in options) or (not options and accepts_events)):
        return request
    problem = None
    if not is_adaptive:
        problem = "this model batches in classic mode; its archive needs scheduling.mode adaptive."
    elif not isinstance(request.form, OneItem):
        problem = 'one {"text": ...} is answered in pieces, no list and no tensors.'
    elif is_grpc(headers):
        problem = "answers come in pieces over HTTP only."
    if problem is not None:
        failed = ItemError.of(UnknownOption(f"stream: {problem}"))
        return replace(request, payloads=tuple(failed for _ in request.payloads))
    (payload,) = payloads
    streamed = replace(payload, options={**payload.options, OPTION: True})
    return replace(request, payloads=(streamed,), is_streamed=True)


def piece(text: str) -> bytes:
    """Write a piece of the text as an event."""
    return b"data: " + encode({"text": text}) + b"\n\n"


def chunk(body: bytes, headers: Mapping[str, str]) -> Reply:
    """Make the reply that sends events and keeps the request; the first of them brings the status and headers."""
    return Reply(200, body, MEDIA_TYPE, {**headers, STREAM_NEXT: "true"})


def last(text: str, reply: Reply, *, has_begun: bool) -> Reply:
    """Make the reply that ends a request."""
    # What has not begun is answered in one go, like any other.
    if not has_begun and reply.status >= 400:
        return reply
    kind = b"event: error\n" if reply.status >= 400 else b""
    body = (piece(text) if text else b"") + kind + b"data: " + reply.body + b"\n\n"
    if has_begun:
        return Reply(200, body, MEDIA_TYPE, {STREAM_NEXT: "false"})
    return Reply(200, body, MEDIA_TYPE, {**reply.headers, **HEADERS})
