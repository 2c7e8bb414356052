"""What a server sent becomes an answer, or one error of torchserve_client.errors. Pure.

Incoming -> answered: parsed JSON, a list with an ItemFailed in the place of each item that failed, arrays, bytes
         -> error_of: what the server says of itself, as an error
"""

from collections.abc import Mapping
from typing import Any

import orjson

from torchserve_client.errors import ClientError, ItemFailed, of_status
from torchserve_client.payloads import Body
from torchserve_client.transport import Incoming

PREDICTIONS = "predictions"


def error_of(incoming: Incoming) -> ClientError:
    """Make the error of what the server says: {"code", "type", "message"}, or {"error": ...} with such a value."""
    document = parsed(incoming.body)
    said: Any = document.get("error", document) if isinstance(document, dict) else None
    if isinstance(said, str):
        said = {"message": said}
    if not isinstance(said, dict):
        said = {}
    if isinstance(said.get("errors"), list):
        # All rows of a file failed, each of which has its error there.
        said = next((each for each in said["errors"] if isinstance(each, dict)), said)
    message = said.get("message") or said.get("status") or incoming.reason or f"HTTP {incoming.status}"
    error = of_status(incoming.status, str(said.get("type", "")), str(message))
    error.retry_after = incoming.headers.get("Retry-After", "")
    error.retry_after_ms = incoming.headers.get("Retry-After-Ms", "")
    return error


def answered(incoming: Incoming, request: Body) -> Any:
    """Read the answer to a request.

    Raises:
        ValueError: the request was one of tensors, and the answer is none.
    """
    if request.is_tensors:
        # Imported here, like numpy in payloads, for those who send no arrays.
        from torchserve_client import protocol  # noqa: PLC0415

        length = incoming.headers.get(protocol.HEADER)
        message = protocol.Message(incoming.body, None if length is None else int(length))
        return dict(protocol.decode(message).arrays)
    document = parsed(incoming.body)
    if document is None and incoming.body != b"null":
        return incoming.body
    if request.is_list and isinstance(document, Mapping) and isinstance(document.get(PREDICTIONS), list):
        return [_item(item, incoming.status) for item in document[PREDICTIONS]]
    return document


def is_list(incoming: Incoming, request: Body) -> bool:
    """Return whether an answer has a result for each item, though all of them may be errors."""
    document = parsed(incoming.body) if request.is_list else None
    return isinstance(document, dict) and isinstance(document.get(PREDICTIONS), list)


def _item(item: Any, status: int) -> Any:
    if not (isinstance(item, dict) and item.keys() == {"error"}):
        return item
    error = item["error"]
    if not isinstance(error, dict):
        return ItemFailed(str(error), status)
    return ItemFailed(str(error.get("message", "")), int(error.get("code", status)), str(error.get("type", "")))


def parsed(content: bytes) -> Any:
    """Parse JSON; None of what is none."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
