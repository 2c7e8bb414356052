"""The body of a request by the kind of its payload, and what its answer means. Pure, but that it reads paths.

bytes, a path                  the body itself; with options, a form whose field `data` it is
text                           the body itself; with options, {"text": ...}
a dict of values               JSON as it is; bytes in it as base64
a list of any of them          {"instances": [...]}; bytes and paths as {"b64": ...}
an array, or a dict of them    Open Inference Protocol v2, binary tensors; options are its parameters
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from urllib3.exceptions import InvalidHeader
from urllib3.filepost import encode_multipart_formdata
from urllib3.util import Retry

from torchserve_client.errors import ClientError, InvalidPayload, ItemFailed, of_status
from torchserve_client.transport import Incoming

# The form field that a TorchServe handler looks for.
DATA = "data"
# An array without a name gets this one; a handler with a single input takes it under any.
INPUT = "input"

OCTETS = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Body:
    """A body, and the headers that say how to read it."""

    content: bytes
    # The content type, and what else says how to read the body.
    headers: Mapping[str, str] = field(default_factory=dict)
    is_list: bool = False  # whether it is a list, which is answered by a list: {"predictions": [...]}
    is_tensors: bool = False  # whether it is of the Open Inference Protocol, and so is its answer

    def results(self, incoming: Incoming) -> list[Any] | None:
        """Return the result or the error of each item of a list; None where the answer has none."""
        document = parsed(incoming.body) if self.is_list else None
        found = document.get("predictions") if isinstance(document, dict) else None
        return found if isinstance(found, list) else None

    def answer(self, incoming: Incoming) -> Any:
        """Read the answer: parsed JSON, a list with ItemFailed for failed items, arrays by name, or bytes.

        Raises:
            ValueError: the body was one of tensors, and the answer is none.
        """
        if self.is_tensors:
            from torchserve_client import protocol  # noqa: PLC0415

            return protocol.decode(incoming.body, int(incoming.headers.get(protocol.HEADER, len(incoming.body))))
        if (results := self.results(incoming)) is not None:
            return [_item(each, incoming.status) for each in results]
        document = parsed(incoming.body)
        return incoming.body if document is None and incoming.body != b"null" else document


def body(payload: Any, options: Mapping[str, Any]) -> Body:
    """Put a payload and its options together.

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


def _tensors(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Body:
    # numpy takes longer to import than all the rest together: it is imported for those who send arrays.
    from torchserve_client import protocol  # noqa: PLC0415

    if not all(map(is_array, arrays.values())):
        raise InvalidPayload("a dict with an array holds arrays only; options are keyword arguments")
    content, json_length = protocol.encode(arrays, options)
    return Body(content, {"Content-Type": OCTETS, protocol.HEADER: str(json_length)}, is_tensors=True)


def _raw(content: bytes, options: Mapping[str, Any]) -> Body:
    if not options:
        return Body(content, {"Content-Type": OCTETS})
    fields: dict[str, Any] = {name: orjson.dumps(value).decode() for name, value in options.items()}
    form, content_type = encode_multipart_formdata({**fields, DATA: ("data", content, OCTETS)})
    return Body(form, {"Content-Type": content_type})


def _json(value: Mapping[str, Any], *, is_list: bool = False) -> Body:
    try:
        return Body(orjson.dumps(value, default=_base64), {"Content-Type": JSON}, is_list)
    except orjson.JSONEncodeError as error:
        raise InvalidPayload(f"JSON cannot hold it: {error}") from None


def _instance(payload: Any) -> Any:
    return payload if isinstance(payload, str | Mapping) else {"b64": _base64(payload)}


def _base64(payload: Any) -> str:
    return base64.b64encode(_bytes(payload)).decode()


def _bytes(payload: Any) -> bytes:
    if isinstance(payload, Path):
        return payload.read_bytes()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidPayload(f"a payload is bytes, a path, text, a dict, an array or a list, not {type(payload).__name__}")


# -- answers ----------------------------------------------------------------------------------------------------------


def parsed(content: bytes) -> Any:
    """Parse JSON; None where it is no JSON."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def error_of(incoming: Incoming) -> ClientError:
    """Return the error that an answer with another status than 2xx stands for."""
    error = of_status(incoming.status, *reason(incoming))
    error.retry_after_s = _retry_after_s(incoming.headers)
    return error


def reason(incoming: Incoming) -> tuple[str, str]:
    """Return the type and the message of an error: {"code", "type", "message"}, or {"error": ...} with such a value."""
    document = parsed(incoming.body)
    error: Any = document.get("error", document) if isinstance(document, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        error = {}
    message = error.get("message") or error.get("status") or incoming.reason or f"HTTP {incoming.status}"
    return str(error.get("type", "")), str(message)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds after which a server wants to be asked again; 0 where it does not say."""
    # An adaptive worker sends milliseconds too, which HTTP does not know; ten digits are a hundred days.
    if after_ms := re.fullmatch("[0-9]{1,10}", headers.get("Retry-After-Ms", "")):
        return int(after_ms[0]) / 1000
    try:
        return float(Retry().parse_retry_after(headers.get("Retry-After", "0")))
    except InvalidHeader:
        return 0.0


def _item(item: Any, status: int) -> Any:
    if not (isinstance(item, dict) and item.keys() == {"error"}):
        return item
    error = item["error"] if isinstance(item["error"], dict) else {"message": item["error"]}
    return ItemFailed(str(error.get("message", "")), int(error.get("code", status)), str(error.get("type", "")))
