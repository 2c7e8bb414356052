"""Write results as one row's answer, in the form of its request. Pure.

one item                  -> OneItem    -> the result, or the error
{"instances": [...]}      -> Instances  -> {"predictions": [...]}; an error replaces its item's result
{"inputs": [text, ...]}   -> PipelineForm   -> a list of results; one error fails the request
{"inputs": [tensor, ...]} -> handlers.protocol.open_inference.Inference
a gRPC call that failed   -> GrpcErrors -> X-Grpc-Status, X-Grpc-Message, which Envoy turns into a gRPC status

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md has the encoding of a message.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import orjson

from handlers.errors import ItemError, WrongOutput
from handlers.protocol.statuses import meaning_of
from handlers.protocol.wire import GRPC_MESSAGE_HEADER, GRPC_STATUS_HEADER, PROTOBUF

# The header of answers by TorchServe's own gRPC. TorchServe 0.12.0 ends a worker whose answer to StreamPredictions does
# not have it. Predictions accepts it, and a worker cannot distinguish the two. Over HTTP it would start a stream.
GRPC_HEADERS = {"ts_stream_next": "false"}

# The most characters of a message: gRPC's clients accept 8 KiB of headers, and a character outside ASCII takes up to
# twelve bytes.
MOST_CHARACTERS = 500
# Characters of a message that are not escaped: printable ASCII without %.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


@dataclass(frozen=True, slots=True)
class Response:
    """One row's answer."""

    status: int  # of HTTP
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)  # further ones


class Form(Protocol):
    """The form in which the answer to a request is written."""

    def pack(self, results: Sequence[Any]) -> Response:
        """Write one row's answer of an ItemError, or a value that JSON can represent, for each payload in order."""


@dataclass(frozen=True, slots=True)
class OneItem:
    """The answer is the result itself, or the error with its status."""

    # Makes a value of a result; NaN and infinity in it are written as null. Without it the result is the value, and NaN
    # or infinity is an error.
    value_of: Callable[[object], Any] | None = None

    def pack(self, results: Sequence[Any]) -> Response:
        (result,) = results
        if isinstance(result, ItemError):
            return Response(result.code, encode(result.to_json()))
        return Response(200, encode(result) if self.value_of is None else encode_padded(self.value_of(result)))


@dataclass(frozen=True, slots=True)
class Instances:
    """The answer is {"predictions": [...]}; {"error": {...}} replaces the result of a failed item."""

    value_of: Callable[[object], Any] | None = None

    def pack(self, results: Sequence[Any]) -> Response:
        value_of = self.value_of or (lambda result: result)
        predictions = [{"error": r.to_json()} if isinstance(r, ItemError) else value_of(r) for r in results]
        write = encode if self.value_of is None else encode_padded
        return Response(status_of(results), write({"predictions": predictions}))


@dataclass(frozen=True, slots=True)
class Piped:
    """How a task answers like transformers' pipeline of its name."""

    value_of: Callable[[Any], Any] = lambda result: result
    is_nested: bool = False  # whether the answer to one input is a list of its result, as of Hugging Face's servers
    options: Mapping[str, object] = field(default_factory=dict)  # of items whose client sends none


@dataclass(frozen=True, slots=True)
class PipelineForm:
    """The answer is that of transformers' pipelines, as servers of Hugging Face write it."""

    inputs: object
    piped: Piped = field(default_factory=Piped)

    def pack(self, results: Sequence[Any]) -> Response:
        is_list = isinstance(self.inputs, list)
        for index, result in enumerate(results):
            if isinstance(result, ItemError):
                place = f"inputs[{index}]: " if is_list else ""
                return Response(result.code, encode({"error": place + result.message, "error_type": result.type}))
        values = [self.piped.value_of(result) for result in results]
        # A translation of one text is a list, too.
        is_nested = self.piped.is_nested or (isinstance(self.inputs, str) and isinstance(values[0], Mapping))
        return Response(200, encode(values if is_list or is_nested else values[0]))


@dataclass(frozen=True, slots=True)
class GrpcErrors:
    """The answer to a gRPC request that fails whole."""

    def pack(self, results: Sequence[Any]) -> Response:
        first, *_ = results
        return Response(first.code, b"", PROTOBUF, error_headers(meaning_of(first.code).grpc, first.message))


def error_headers(code: int, message: str) -> dict[str, str]:
    """Return the headers of gRPC's code for Envoy; the message is cut to MOST_CHARACTERS."""
    text = quote(message[:MOST_CHARACTERS], safe=_PLAIN, errors="replace")
    return {GRPC_STATUS_HEADER: str(code), GRPC_MESSAGE_HEADER: text}


def status_of(results: Sequence[Any]) -> int:
    """Return the status of a row: 200 if at least one item has a result, else the first error's status."""
    first, *_ = results
    return first.code if all(isinstance(result, ItemError) for result in results) else 200


def encode(value: object) -> bytes:
    """Write a value, arrays included, as compact UTF-8 JSON; WrongOutput names the field with NaN or infinity."""
    body = encode_padded(value)
    if b"null" in body:
        try:  # orjson writes NaN and infinity as null; the slower encoder raises for them
            json.dumps(value, allow_nan=False, default=np.ndarray.tolist)
        except ValueError:
            raise WrongOutput(f"{_non_finite(value) or 'result'}: the model returned NaN or infinity.") from None
    return body


def _non_finite(value: Any) -> str | None:
    """Return the innermost field that contains NaN or infinity; "" outside any field, None if nothing does."""
    if isinstance(value, dict):
        found = {name: _non_finite(each) for name, each in value.items()}
        return next((each or name for name, each in found.items() if each is not None), None)
    if isinstance(value, list | tuple):
        return next((each for each in map(_non_finite, value) if each is not None), None)
    is_number = isinstance(value, float) or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f")
    return "" if is_number and not np.isfinite(value).all() else None


def encode_padded(value: object) -> bytes:
    """Write a value as compact UTF-8 JSON, with null for NaN and infinity."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
