"""What a server sent becomes an answer, or one error of torchserve_client.errors. Pure."""

from collections.abc import Mapping
from typing import Any

import orjson

from torchserve_client.errors import ClientError, ItemFailed, of_status
from torchserve_client.payloads import Body
from torchserve_client.transport import Incoming

PREDICTIONS = "predictions"


def reason(incoming: Incoming) -> tuple[str, str]:
    """Return the type and the message of an error: {"code", "type", "message"}, or {"error": ...} with such a value."""
    document = parsed(incoming.body)
    error: Any = document.get("error", document) if isinstance(document, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        error = {}
    if isinstance(error.get("errors"), list):
        # All rows of a file failed, and each of them has its error.
        error = next((each for each in error["errors"] if isinstance(each, dict)), error)
    message = error.get("message") or error.get("status") or incoming.reason or f"HTTP {incoming.status}"
    return str(error.get("type", "")), str(message)


def error_of(incoming: Incoming) -> ClientError:
    """Return the error that an answer with another status than 2xx stands for."""
    error = of_status(incoming.status, *reason(incoming))
    error.retry_after = incoming.headers.get("Retry-After", "")
    error.retry_after_ms = incoming.headers.get("Retry-After-Ms", "")
    return error


def answered(incoming: Incoming, request: Body) -> Any:
    """Read the answer to a request: parsed JSON, a list with ItemFailed for failed items, arrays by name, or bytes.

    Raises:
        ValueError: the request was one of tensors, and the answer is none.
    """
    if request.is_tensors:
        # numpy is imported for those who send arrays alone, as in payloads.
        from torchserve_client import protocol  # noqa: PLC0415

        length = incoming.headers.get(protocol.HEADER)
        return protocol.decode(protocol.Message(incoming.body, None if length is None else int(length)))
    document = parsed(incoming.body)
    if document is None and incoming.body != b"null":
        return incoming.body
    if is_list(incoming, request):
        return [_item(item, incoming.status) for item in document[PREDICTIONS]]
    return document


def is_list(incoming: Incoming, request: Body) -> bool:
    """Return whether an answer has a result for each item, though all of them may be errors."""
    document = parsed(incoming.body) if request.is_list else None
    return isinstance(document, Mapping) and isinstance(document.get(PREDICTIONS), list)


def _item(item: Any, status: int) -> Any:
    if not (isinstance(item, dict) and item.keys() == {"error"}):
        return item
    error = item["error"]
    if not isinstance(error, dict):
        return ItemFailed(str(error), status)
    return ItemFailed(str(error.get("message", "")), int(error.get("code", status)), str(error.get("type", "")))


def parsed(content: bytes) -> Any:
    """Parse JSON; None where it is no JSON."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
