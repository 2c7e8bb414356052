"""What must hold of an answer, whatever was sent.

Sent, Received -> problems -> sentences that say what is wrong, without the payload
two Received   -> differ   -> whether one request got another answer beside others
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from tests.fuzz.kinds import Kind
from tests.fuzz.messages import as_json, elements
from tests.fuzz.sent import Sent
from tests.fuzz.values import CANARY

# What a client can bring about: an answer, a mistake of its own, a limit.
ALLOWED = frozenset({200, 400, 413, 415, 422})
# An adaptive worker refuses one that comes too late or has too little time.
ALLOWED_ADAPTIVE = ALLOWED | {429, 503, 504}
FORBIDDEN_TYPES = ("InternalError", "OutOfMemory")
# A message is a sentence: the longest there should be lists the languages of a model.
LONGEST_MESSAGE = 3000
# config.properties has no smaller max_response_size; an answer is far below it.
LARGEST_ANSWER = 6_553_500
# What padding and the number of rows may move a score by in fp32.
TOLERANCE = 2e-3
OK = 200
# In place of a status: TorchServe hung up while the request was still being sent, its headers being too long, say.
CUT_OFF = 0
# What TorchServe calls a form with a field of no name, of a character set there is not, or without an end.
UNDECODABLE = b'"type": "ErrorDataDecoderException"'
CANARIES = re.compile(CANARY, re.IGNORECASE)


class Received(NamedTuple):
    """An answer as it came.

    Attributes:
        status: HTTP's.
        content_type: "" for none.
        headers: the others.
        body: the bytes.
        seconds: from the request's end to the answer's.
    """

    status: int
    content_type: str
    headers: Mapping[str, str]
    body: bytes
    seconds: float


def problems(sent: Sent, received: Received, *, is_adaptive: bool, is_served: bool = False) -> Iterator[str]:
    """Say what is wrong with an answer; its time is checked elsewhere, where stalls can be told apart.

    Args:
        sent: the request.
        received: its answer.
        is_adaptive: whether the worker may refuse what comes too late.
        is_served: whether TorchServe stands before it, which answers a form that it cannot decode by itself, and hangs
            up on headers that are too long.
    """
    if is_served and (received.status == CUT_OFF or (received.status == 500 and UNDECODABLE in received.body)):
        return
    if received.status not in (ALLOWED_ADAPTIVE if is_adaptive else ALLOWED):
        yield f"status {received.status}"
    if received.status == 504 and not sent.may_time_out:
        yield "504 although it had time"
    if len(received.body) > LARGEST_ANSWER:
        yield f"an answer of more than {LARGEST_ANSWER} bytes"
    try:
        document = json.loads(head(received), parse_constant=_no_constant)
    except (ValueError, RecursionError, DecodeError):
        yield "an answer that is no JSON"
        return
    errors = list(_errors(document, received.status))
    if received.status != 200 and not errors:
        yield "an error without {code, type, message}"
    for error in errors:
        yield from _wrong(error, received.status)


def head(received: Received) -> bytes:
    """The JSON of an answer: all of it, or what stands before the binary tensors, or what a gRPC message says."""
    sizes = [value for name, value in received.headers.items() if name.lower() == "inference-header-content-length"]
    if sizes:
        return received.body[: int(sizes[0])]
    return as_json(received.content_type, received.status, received.headers, received.body)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _errors(document: Any, status: int) -> Iterator[Any]:
    """The errors of an answer: of the whole, of an item of a list, of a row of tensors."""
    if not isinstance(document, dict):
        return
    if status != 200 and "predictions" not in document:
        yield document
    for prediction in document.get("predictions", ()):
        if isinstance(prediction, dict) and "error" in prediction:
            yield prediction["error"]
    for output in document.get("outputs", ()):
        if output["name"] == "error":
            yield from (json.loads(error) for error in output.get("data", ()) if error)


def _wrong(error: Any, status: int) -> Iterator[str]:
    if not isinstance(error, dict):
        yield "an error that is no object"
    elif error.keys() == {"error"}:
        yield from _wrong_message(error["error"])
    elif error.keys() != {"code", "type", "message"}:
        yield f"an error with other fields: {', '.join(sorted(error))[:100]}"
    else:
        yield from _wrong_message(error["message"])
        if error["type"] in FORBIDDEN_TYPES:
            yield f"{error['type']} ({error['code']}) for an item"
        if status != 200 and not 400 <= error["code"] <= 599:
            yield f"code {error['code']!r}"


def _wrong_message(message: Any) -> Iterator[str]:
    if not isinstance(message, str) or not message:
        yield "no message"
    elif len(message) > LONGEST_MESSAGE:
        yield f"a message of more than {LONGEST_MESSAGE} characters"
    elif CANARIES.search(message):
        yield "a message that quotes the payload"


def differ(kind: Kind, alone: Received, among: Received) -> bool:
    """Whether two answers to one request are not the same, but for what padding moves in a score."""
    if CUT_OFF in (alone.status, among.status) and alone.status != OK:
        return False
    if alone.status != among.status:
        return True
    if alone.status != 200:
        return alone.body != among.body
    left, right = _read(alone), _read(among)
    if kind.name == "question_answering":
        # A text that repeats itself has answers whose scores are equal but for their last bits.
        return len(list(_numbers(left))) != len(list(_numbers(right)))
    return not _same(left, right)


def _read(received: Received) -> Any:
    """Read an answer, with binary tensors as lists in their places."""
    document = json.loads(head(received))
    start = len(head(received))
    for output in document.get("outputs", ()) if isinstance(document, dict) else ():
        if size := output.get("parameters", {}).pop("binary_data_size", 0):
            output["data"] = list(elements(output["datatype"], received.body[start : start + size]))
            start += size
    return document


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, abs_tol=TOLERANCE, rel_tol=TOLERANCE)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(_same(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, str) and isinstance(right, str) and left[:1] == right[:1] == "[":
        # A tensor of documents has scores within its texts.
        return _same(json.loads(left), json.loads(right)) if left != right else True
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    return bool(left == right)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
