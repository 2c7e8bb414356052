"""Write results as one row's answer, in the form of its request. Pure.

one item                  -> OneItem   -> the result, or the error
{"instances": [...]}      -> Instances -> {"predictions": [...]}, errors in their places
{"inputs": [tensor, ...]} -> handlers.protocol.open_inference.Inference
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import orjson

from handlers.errors import ItemError


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
        return Reply(self.status, self.body, self.content_type, {**self.headers, **headers})


class Form(Protocol):
    """The form in which the answer to a request is written."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """Put one row's answer together.

        Args:
            results: one per payload of the request, in order; each is an ItemError or a value that JSON can hold.

        Raises:
            ValueError, TypeError: a result cannot be written, such as NaN.
        """


@dataclass(frozen=True, slots=True)
class OneItem:
    """The answer is the result itself, or the error with its status."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`."""
        (result,) = results
        if isinstance(result, ItemError):
            return Reply(result.code, encode(result.to_json()))
        return Reply(200, encode(result))


@dataclass(frozen=True, slots=True)
class Instances:
    """The answer is {"predictions": [...]}, where errors stand in their places as {"error": {...}}."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`. The status is 200 when at least one item has a result, otherwise that of the first error."""
        predictions = [{"error": r.to_json()} if isinstance(r, ItemError) else r for r in results]
        return Reply(status_of(results), encode({"predictions": predictions}))


def status_of(results: Sequence[Any]) -> int:
    """Choose the status of a row: 200 when at least one item has a result, otherwise that of the first error."""
    first, *_ = results
    is_failed = all(isinstance(result, ItemError) for result in results)
    return first.code if is_failed else 200


def encode(value: Any) -> bytes:
    """Write a value as compact UTF-8 JSON, arrays included; TorchServe itself would indent it.

    Raises:
        ValueError: it holds a number that JSON does not have, such as NaN.
        TypeError: it holds something else that JSON does not have.
    """
    body = encode_padded(value)
    if b"null" in body:
        # orjson writes null for what is no number; the slower encoder raises there, and takes what is truly null.
        json.dumps(value, allow_nan=False, default=np.ndarray.tolist)
    return body


def encode_padded(value: Any) -> bytes:
    """Write a value as `encode` does, but take arrays that are padded with NaN, which is written as null.

    Raises:
        TypeError: it holds something that JSON does not have.
    """
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
