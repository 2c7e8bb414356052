"""Turns what a caller has into the body of a request. Pure, but that it reads paths.

bytes, a path                  the body itself; with options, a form whose field `data` it is
text                           the body itself; with options, {"text": ...}
a dict of values               JSON as it is; bytes in it as base64
a list of any of them          {"instances": [...]}; bytes and paths as {"b64": ...}
an array, or a dict of them    Open Inference Protocol v2, binary tensors; options are its parameters
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from urllib3.filepost import encode_multipart_formdata

from torchserve_client.errors import InvalidPayload

# The form field that a TorchServe handler looks for.
DATA = "data"
# An array without a name gets this one; a handler with a single input takes it under any.
INPUT = "input"

OCTETS, TEXT, JSON = "application/octet-stream", "text/plain; charset=utf-8", "application/json"


@dataclass(frozen=True, slots=True)
class Body:
    """A body, and the headers that say how to read it.

    Attributes:
        content: the bytes that are sent.
        headers: the content type, and what else says how to read the body.
        is_list: whether it is a list, which is answered by a list: {"predictions": [...]}.
        is_tensors: whether it is of the Open Inference Protocol, and so is its answer.
    """

    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    is_list: bool = False
    is_tensors: bool = False


def body(payload: Any, options: Mapping[str, Any]) -> Body:
    """Put a payload and its options together.

    Args:
        payload: any of the kinds above.
        options: name -> value that JSON can hold; told to the model beside the input.

    Raises:
        InvalidPayload: the payload is of no kind that can be sent.
        OSError: a path cannot be read.
    """
    if is_array(payload):
        return _tensors({INPUT: payload}, options)
    if isinstance(payload, Mapping):
        if any(map(is_array, payload.values())):
            return _tensors(payload, options)
        return _json({**options, **payload}, is_list="instances" in payload)
    if isinstance(payload, str):
        return _json({**options, "text": payload}) if options else Body(payload.encode(), {"Content-Type": TEXT})
    if isinstance(payload, list | tuple):
        return _json({"instances": [_instance(each) for each in payload], **options}, is_list=True)
    return _raw(_bytes(payload), options)


def is_array(value: Any) -> bool:
    """Return whether a value is an array of numpy's, without importing numpy."""
    return hasattr(value, "__array_interface__") and hasattr(value, "ravel")


def _raw(content: bytes, options: Mapping[str, Any]) -> Body:
    if not options:
        return Body(content, {"Content-Type": OCTETS})
    fields: dict[str, Any] = {name: orjson.dumps(value).decode() for name, value in options.items()}
    fields[DATA] = ("data", content, OCTETS)
    form, content_type = encode_multipart_formdata(fields)
    return Body(form, {"Content-Type": content_type})


def _tensors(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Body:
    # numpy takes longer to import than all the rest together: who sends no arrays does not wait for it.
    from torchserve_client import protocol  # noqa: PLC0415

    if not all(map(is_array, arrays.values())):
        raise InvalidPayload("a dict with an array holds arrays only; options are keyword arguments")
    message = protocol.encode(arrays, parameters=options)
    return Body(message.body, message.headers, is_tensors=True)


def _json(value: Mapping[str, Any], *, is_list: bool = False) -> Body:
    try:
        return Body(orjson.dumps(value, default=_other), {"Content-Type": JSON}, is_list)
    except orjson.JSONEncodeError as error:
        raise InvalidPayload(f"JSON cannot hold it: {error}") from None


def _instance(payload: Any) -> Any:
    if isinstance(payload, str | Mapping):
        return payload
    return {"b64": base64.b64encode(_bytes(payload)).decode()}


def _other(value: Any) -> str:
    """Write bytes and paths in JSON as base64."""
    return base64.b64encode(_bytes(value)).decode()


def _bytes(payload: Any) -> bytes:
    if isinstance(payload, Path):
        return payload.read_bytes()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidPayload(f"a payload is bytes, a path, text, a dict, an array or a list, not {type(payload).__name__}")
