"""Write results as one row's answer, in the form of its request. Pure.

one item                  -> OneItem    -> the result, or the error
{"instances": [...]}      -> Instances  -> {"predictions": [...]}, errors in their places
{"inputs": [tensor, ...]} -> handlers.protocol.open_inference.Inference
gRPC, where all fails     -> GrpcErrors -> X-Grpc-Status, X-Grpc-Message, of which Envoy makes a gRPC status

https://github.com/grpc/grpc/blob/master/doc/statuscodes.md lists gRPC's codes, and PROTOCOL-HTTP2.md there how a
message is written.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import orjson

from handlers.errors import ItemError, WrongOutput

# The media type of requests that Envoy's bridge makes of gRPC calls, and of their answers.
PROTOBUF = "application/x-protobuf"
STATUS_HEADER, MESSAGE_HEADER = "X-Grpc-Status", "X-Grpc-Message"

INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 4, 5, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16
# The codes that Triton answers with, where it has such an error. handlers.errors has the HTTP statuses.
_CODES = {
    **{401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: NOT_FOUND, 405: UNIMPLEMENTED, 413: RESOURCE_EXHAUSTED},
    **{429: UNAVAILABLE, 500: INTERNAL, 501: UNIMPLEMENTED, 502: UNAVAILABLE, 503: UNAVAILABLE},
    **{504: DEADLINE_EXCEEDED, 507: RESOURCE_EXHAUSTED},
}

# gRPC's own clients take 8 KiB of all headers together; a character outside ASCII takes up to twelve bytes.
MOST_CHARACTERS = 500
# Characters of a message that are not escaped: printable ASCII but %.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


@dataclass(frozen=True, slots=True)
class Reply:
    """One row's answer.

    Attributes:
        status: the HTTP status code.
        body: the bytes of the answer.
        content_type: the body's media type.
        headers: further headers of the answer.
    """

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def with_headers(self, headers: Mapping[str, str]) -> "Reply":
        """Copy the answer and add headers; one that is there already is replaced."""
        return replace(self, headers={**self.headers, **headers})


class Form(Protocol):
    """The form in which the answer to a request is written."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """Write one row's answer.

        Args:
            results: one per payload of the request, in order; each is an ItemError or a value that JSON can hold.

        Raises:
            WrongOutput: a result contains NaN or infinity.
            TypeError: a result contains a type that JSON does not have.
        """


@dataclass(frozen=True, slots=True)
class OneItem:
    """The answer is the result itself, or the error with its status.

    Attributes:
        value_of: makes a value of a result, in which numbers that JSON lacks are written as null. None where a result
            is the value, and such a number an error.
    """

    value_of: Callable[[Any], Any] | None = None

    def pack(self, results: Sequence[Any]) -> Reply:
        (result,) = results
        if isinstance(result, ItemError):
            return Reply(result.code, encode(result.to_json()))
        return Reply(200, encode(result) if self.value_of is None else encode_padded(self.value_of(result)))


@dataclass(frozen=True, slots=True)
class Instances:
    """The answer is {"predictions": [...]}, where errors stand in their places as {"error": {...}}."""

    value_of: Callable[[Any], Any] | None = None

    def pack(self, results: Sequence[Any]) -> Reply:
        value_of = self.value_of or (lambda result: result)
        predictions = [{"error": r.to_json()} if isinstance(r, ItemError) else value_of(r) for r in results]
        write = encode if self.value_of is None else encode_padded
        return Reply(status_of(results), write({"predictions": predictions}))


@dataclass(frozen=True, slots=True)
class GrpcErrors:
    """The form of an answer to a gRPC request that fails whole; see `Form`."""

    def pack(self, results: Sequence[Any]) -> Reply:
        first, *_ = results
        return Reply(first.code, b"", PROTOBUF, error_headers(first.code, first.message))


def code_of(status: int) -> int:
    """Return gRPC's code of an HTTP status, 400 or more."""
    return _CODES.get(status, INVALID_ARGUMENT if status < 500 else INTERNAL)


def error_headers(status: int, message: str) -> dict[str, str]:
    """Write an error for Envoy; the message is cut to MOST_CHARACTERS."""
    text = quote(message[:MOST_CHARACTERS], safe=_PLAIN, errors="replace")
    return {STATUS_HEADER: str(code_of(status)), MESSAGE_HEADER: text}


def status_of(results: Sequence[Any]) -> int:
    """Choose the status of a row: 200 when at least one item has a result, otherwise that of the first error."""
    first, *_ = results
    is_failed = all(isinstance(result, ItemError) for result in results)
    return first.code if is_failed else 200


def encode(value: Any) -> bytes:
    """Write a value as compact UTF-8 JSON, arrays included; WrongOutput names the field with NaN or infinity."""
    body = encode_padded(value)
    if b"null" in body:
        # orjson writes null for NaN and infinity, for which the slower encoder raises.
        try:
            json.dumps(value, allow_nan=False, default=np.ndarray.tolist)
        except ValueError:
            raise WrongOutput(f"{_non_finite(value) or 'result'}: the model returned NaN or infinity.") from None
    return body


def _non_finite(value: Any) -> str | None:
    """Return the name of the innermost field that contains NaN or infinity; "" outside any field, None without one."""
    if isinstance(value, dict):
        found = {name: _non_finite(each) for name, each in value.items()}
        return next((each or name for name, each in found.items() if each is not None), None)
    if isinstance(value, list | tuple):
        return next((each for each in map(_non_finite, value) if each is not None), None)
    is_number = isinstance(value, float) or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f")
    return "" if is_number and not np.isfinite(value).all() else None


def encode_padded(value: Any) -> bytes:
    """Write a value as `encode` does, but take arrays that are padded with NaN, which is written as null."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
