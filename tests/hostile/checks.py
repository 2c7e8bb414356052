"""Checks that hold for every answer, whatever was sent."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from handlers.protocol.responses import PROTOBUF
from tests.hostile.requests import CANARY
from tests.hostile.target import Reply

# Statuses that a client can cause: an answer, its own mistake, a limit.
ALLOWED = frozenset({200, 400, 413, 415, 422})
FORBIDDEN_TYPES = ("InternalError", "OutOfMemory")
# Characters: a message is a sentence, of which the longest lists the languages of a model.
LONGEST_MESSAGE = 3000
# Seconds of a batch of three on a tiny model, which takes some hundredths; a machine may stall for a second or two.
LONGEST_S = 10.0
# The most by which padding and the number of rows may change a score in fp32.
TOLERANCE = 2e-3
CANARIES = re.compile(CANARY, re.IGNORECASE)


def problems(reply: Reply) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with an answer, without the payload."""
    if reply.status not in ALLOWED:
        yield f"status {reply.status}"
    if reply.seconds > LONGEST_S:
        yield f"a batch of {reply.seconds:.0f} s"
    content_type = reply.headers.get("content-type", "")
    if content_type == PROTOBUF:
        if reply.status != 200:
            sent = {name.lower(): value for name, value in reply.headers.items()}
            yield from _wrong_message(unquote(sent.get("x-grpc-message", "")))
        return
    length = {name.lower(): value for name, value in reply.headers.items()}.get("inference-header-content-length")
    try:
        document = json.loads(reply.body[: int(length)] if length else reply.body, parse_constant=_no_constant)
    except ValueError:
        yield "an answer that is no JSON"
        return
    errors = list(_errors(document, reply.status))
    if reply.status != 200 and not errors:
        yield "an error without a code, a type and a message"
    for error in errors:
        if not isinstance(error, dict) or error.keys() not in ({"error"}, {"code", "type", "message"}):
            yield "an error of another form"
            continue
        yield from _wrong_message(error.get("message", error.get("error")))
        if error.get("type") in FORBIDDEN_TYPES:
            yield f"{error['type']} for an item"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _errors(document: Any, status: int) -> Iterator[Any]:
    """Yield the error of a request, of each item of a list, and of each row of tensors."""
    if isinstance(document, list):
        return
    if status != 200 and "predictions" not in document:
        yield document
    for prediction in document.get("predictions", ()):
        if isinstance(prediction, dict) and "error" in prediction:
            yield prediction["error"]
    for output in document.get("outputs", ()):
        if output["name"] == "error":
            yield from (json.loads(error) for error in output.get("data", ()) if error)


def _wrong_message(message: Any) -> Iterator[str]:
    if not isinstance(message, str) or not 0 < len(message) <= LONGEST_MESSAGE:
        yield "no message, or one that is too long"
    elif CANARIES.search(message):
        yield "a message that quotes the payload"
