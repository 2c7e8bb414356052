"""Results -> one row's answer, in the form of its request. Pure.

one item                  -> OneItem   -> the result, or the error
{"instances": [...]}      -> Instances -> {"predictions": [...]}, errors in their places
{"inputs": [tensor, ...]} -> handlers.protocol.open_inference.Inference
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import orjson

from handlers.errors import ItemError


@dataclass(frozen=True, slots=True)
class Reply:
    """One row's answer.

    Attributes:
        status: HTTP's.
        body: as `content_type` says.
        headers: further ones.
    """

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def with_headers(self, headers: Mapping[str, str]) -> "Reply":
        """The same with more headers."""
        return replace(self, headers={**self.headers, **headers})


class Form(Protocol):
    """How the answer to a request is written."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """Put one row's answer together.

        Args:
            results: one per payload of the request, in order: an ItemError, or a value that JSON can hold.

        Raises:
            ValueError, TypeError: a result that cannot be written, such as NaN.
        """


@dataclass(frozen=True, slots=True)
class OneItem:
    """The result itself, or the error with its status."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`."""
        (result,) = results
        if isinstance(result, ItemError):
            return Reply(result.code, encode(result.to_json()))
        return Reply(200, encode(result))


@dataclass(frozen=True, slots=True)
class Instances:
    """{"predictions": [...]}, errors standing in their places as {"error": {...}}."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`; 200 when at least one item has a result, otherwise the status of the first error."""
        predictions = [{"error": r.to_json()} if isinstance(r, ItemError) else r for r in results]
        return Reply(status_of(results), encode({"predictions": predictions}))


def status_of(results: Sequence[Any]) -> int:
    """200 when at least one item has a result, otherwise the status of the first error."""
    first, *_ = results
    is_failed = all(isinstance(result, ItemError) for result in results)
    return first.code if is_failed else 200


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON, arrays included; TorchServe itself would indent it.

    Raises:
        ValueError: a number that JSON does not have, such as NaN.
        TypeError: something that JSON does not have.
    """
    body = encode_padded(value)
    if b"null" in body:
        # Where orjson found no number it wrote null; the slower encoder tells that from what is null or says so.
        json.dumps(value, allow_nan=False, default=np.ndarray.tolist)
    return body


def encode_padded(value: Any) -> bytes:
    """The same for arrays that NaN pads: it is written as null.

    Raises:
        TypeError: something that JSON does not have.
    """
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
