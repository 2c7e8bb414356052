"""The body of a request, by the kind of its payload. Pure, but that it reads paths.

bytes, a path                  the body itself; with options, a form whose field `data` it is
a path of .npy or .npz, Typed  the same, under its media type
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
# Suffix of a file -> what its bytes are called, where a model must be told: one array, and arrays by name.
MEDIA_TYPES = {".npy": "application/x-npy", ".npz": "application/x-npz"}


@dataclass(frozen=True, slots=True)
class Typed:
    """Bytes, and what they are.

    Attributes:
        content: the bytes that are sent.
        media_type: their Content-Type.
    """

    content: bytes
    media_type: str


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
        options: the model's options, name -> value that JSON can hold.

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
    return _raw(_typed(payload), options)


def media_type(path: Path) -> str:
    """Return what the bytes of a file are called; what they are is seen in them, but for arrays."""
    return MEDIA_TYPES.get(path.suffix.lower(), OCTETS)


def is_array(value: Any) -> bool:
    """Return whether a value is an array of numpy's, without importing numpy."""
    return hasattr(value, "__array_interface__") and hasattr(value, "ravel")


def _tensors(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Body:
    # numpy takes longer to import than all the rest together: it is imported for those who send arrays.
    from torchserve_client import protocol  # noqa: PLC0415

    if not all(map(is_array, arrays.values())):
        raise InvalidPayload("a dict with an array holds arrays only; options are keyword arguments")
    message = protocol.encode(arrays, options)
    headers = {"Content-Type": OCTETS, protocol.HEADER: str(message.json_length)}
    return Body(message.body, headers, is_tensors=True)


def _typed(payload: Any) -> Typed:
    if isinstance(payload, Typed):
        return payload
    return Typed(_bytes(payload), media_type(payload) if isinstance(payload, Path) else OCTETS)


def _raw(payload: Typed, options: Mapping[str, Any]) -> Body:
    if not options:
        return Body(payload.content, {"Content-Type": payload.media_type})
    fields: dict[str, Any] = {name: orjson.dumps(value).decode() for name, value in options.items()}
    fields[DATA] = ("data", payload.content, payload.media_type)
    form, content_type = encode_multipart_formdata(fields)
    return Body(form, {"Content-Type": content_type})


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
