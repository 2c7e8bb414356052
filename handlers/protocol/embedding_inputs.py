"""Texts and images of the embeddings APIs, as items of a task. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from handlers.errors import InvalidBody, InvalidInput, ItemError
from handlers.protocol.requests import Payload
from handlers.protocol.rows import Shape

INPUTS = {"text": "text", "image": "b64"}  # the task's fields by clients' names of an item's inputs
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")


def modalities(shape: Shape) -> list[str]:
    """Return the kinds of items that a model accepts."""
    return [name for name, field in INPUTS.items() if field in shape.inputs]


def text_or_image(given: Any, modality: str, options: Mapping[str, Any], shape: Shape) -> Payload | ItemError:
    """Make an item of a text, an image, or an object with one of both."""
    try:
        known = modalities(shape)
        if isinstance(given, dict):
            if len(given) != 1 or not given.keys() <= set(known):
                shapes = " or ".join(f'{{"{name}": ...}}' for name in known)
                raise InvalidBody(f"{modality}: must be a string or {shapes}.")
            ((modality, given),) = given.items()
        elif isinstance(given, str) and given.startswith("data:image/") and "image" in known:
            modality = "image"
        return Payload({INPUTS[modality]: _base64(given) if modality == "image" else given}, options)
    except InvalidInput as error:
        return ItemError.of(error)


def _base64(given: Any) -> str:
    """Return the base64 of a data URI. Other URLs are refused: a server must not fetch URLs for clients."""
    if not isinstance(given, str):
        raise InvalidBody("image: must be a data URI, or base64.")
    head, _, data = given.partition(",") if given[:5].lower() == "data:" else ("", "", given)
    if (head and not head.lower().endswith(";base64")) or _SCHEME.match(data):
        raise InvalidBody("image: this server fetches no URLs; send data:image/png;base64,... or base64.")
    return data
