"""Requests and responses of predictions as bytes. Pure, except that it reads paths.

bytes, a path                  the raw body; with options, a form whose field `data` contains it
text                           the raw body; with options, {"text": ...}
a dict of values               JSON; bytes in it as base64
a list of any of them          {"instances": [...]}; bytes and paths as {"b64": ...}, lists and numbers as they are
an array, or a dict of them    Open Inference Protocol v2, binary tensors; options are its parameters
"""

import base64
import re
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from urllib3.exceptions import InvalidHeader
from urllib3.filepost import encode_multipart_formdata
from urllib3.util import Retry

from torchserve_client.errors import ClientError, InvalidPayload, ItemFailed, make_error
from torchserve_client.transport import Response

DATA = "data"  # the form field that a TorchServe handler reads
INPUT = "input"  # the name of an unnamed array; a handler with a single input accepts any name

OCTETS = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
Json = dict[str, Any]  # an object of JSON or YAML, whose values are checked as they are read


class Form(Enum):
    ITEM = auto()  # one item; the response is JSON or bytes
    LIST = auto()  # {"instances": [...]}; the response is {"predictions": [...]}
    TENSORS = auto()  # Open Inference Protocol, in both directions


class Body(NamedTuple):
    content: bytes
    headers: Mapping[str, str]
    form: Form = Form.ITEM


def encode(payload: object, options: Mapping[str, object]) -> Body:
    if is_array(payload):
        return _tensors({INPUT: payload}, options)
    if isinstance(payload, Mapping):
        if any(map(is_array, payload.values())):
            return _tensors(payload, options)
        return _json({**options, **payload}, Form.LIST if "instances" in payload else Form.ITEM)
    if isinstance(payload, str):
        return _json({**options, "text": payload}) if options else Body(payload.encode(), {"Content-Type": TEXT})
    if isinstance(payload, list | tuple):
        return _json({"instances": [_instance(each) for each in payload], **options}, Form.LIST)
    return _raw(_bytes(payload), options)


def is_array(value: object) -> bool:
    """Return whether a value is a numpy array, without importing numpy."""
    return hasattr(value, "__array_interface__") and hasattr(value, "ravel")


def _tensors(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Body:
    # numpy takes longer to import than all the rest together, and only arrays need it.
    from torchserve_client import protocol  # noqa: PLC0415

    if not all(map(is_array, arrays.values())):
        raise InvalidPayload("a dict with an array must contain only arrays; pass options as keyword arguments")
    content, json_length = protocol.encode(arrays, options)
    return Body(content, {"Content-Type": OCTETS, protocol.HEADER: str(json_length)}, Form.TENSORS)


def _raw(content: bytes, options: Mapping[str, object]) -> Body:
    if not options:
        return Body(content, {"Content-Type": OCTETS})
    fields: dict[str, Any] = {name: orjson.dumps(value).decode() for name, value in options.items()}
    form, content_type = encode_multipart_formdata({**fields, DATA: ("data", content, OCTETS)})
    return Body(form, {"Content-Type": content_type})


def _json(value: Mapping[str, object], form: Form = Form.ITEM) -> Body:
    try:
        return Body(orjson.dumps(value, default=_base64), {"Content-Type": JSON}, form)
    except orjson.JSONEncodeError as error:
        raise InvalidPayload(f"the payload cannot be written as JSON: {error}") from None


def _instance(payload: object) -> object:
    return payload if isinstance(payload, str | Mapping | list | int | float) else {"b64": _base64(payload)}


def _base64(payload: object) -> str:
    return base64.b64encode(_bytes(payload)).decode()


def _bytes(payload: object) -> bytes:
    if isinstance(payload, Path):
        return payload.read_bytes()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidPayload(
        f"a payload must be bytes, a path, text, a dict, an array or a list, not {type(payload).__name__}"
    )


def decode(response: Response, form: Form) -> Any:
    """Read a response: parsed JSON, a list with ItemFailed for failed items, arrays by name, or bytes."""
    if form is Form.TENSORS:
        from torchserve_client import protocol  # noqa: PLC0415

        return protocol.decode(response.body, int(response.headers.get(protocol.HEADER, len(response.body))))
    if (results := read_results(response, form)) is not None:
        return [_item(each, response.status) for each in results]
    document = parse_json(response.body)
    return response.body if document is None and response.body != b"null" else document


def read_results(response: Response, form: Form) -> list[object] | None:
    """Return the result or the error of each item of a list; None if the response contains none."""
    document = parse_json(response.body) if form is Form.LIST else None
    found = document.get("predictions") if isinstance(document, dict) else None
    return found if isinstance(found, list) else None


def parse_json(content: bytes) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def read_error(response: Response) -> ClientError:
    """Return the error of a response whose status is not 2xx."""
    error = make_error(response.status, *read_reason(response))
    error.retry_after_s = _retry_after_s(response.headers)
    return error


def read_reason(response: Response) -> tuple[str, str]:
    """Return type and message of an error: {"code", "type", "message"}, or {"error": ...} with such a value."""
    document = parse_json(response.body)
    error: object = document.get("error", document) if isinstance(document, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        error = {}
    message = error.get("message") or error.get("status") or response.reason or f"HTTP {response.status}"
    return str(error.get("type", "")), str(message)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the server's Retry-After in seconds; 0 without one."""
    # An adaptive worker also sends milliseconds, which HTTP does not define; ten digits are a hundred days.
    if after_ms := re.fullmatch("[0-9]{1,10}", headers.get("Retry-After-Ms", "")):
        return int(after_ms[0]) / 1000
    try:
        return float(Retry().parse_retry_after(headers.get("Retry-After", "0")))
    except InvalidHeader:
        return 0.0


def _item(item: object, status: int) -> object:
    if not (isinstance(item, dict) and item.keys() == {"error"}):
        return item
    error = item["error"] if isinstance(item["error"], dict) else {"message": item["error"]}
    return ItemFailed(str(error.get("message", "")), int(error.get("code", status)), str(error.get("type", "")))
