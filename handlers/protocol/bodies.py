"""The readers of bodies by their media types, character sets, and JSON. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import orjson

from handlers.config import MOST_OPTIONS, TOO_MANY
from handlers.errors import (
    InvalidOption,
    InvalidText,
    MalformedJson,
    UnsupportedMedia,
)

BOM = "\ufeff"

Reader = Literal["json", "form", "text", "unknown", "other"]
# Media types (RFC 9110, section 8.3.1; RFC 6839 for +json) and their readers; the first pattern that matches decides.
# A client that states no type, or application/octet-stream, does not state what the body contains.
READERS: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (re.compile(r"(application|text)/json|[^/]+/.+\+json"), "json"),
    (re.compile(r"multipart/.*|application/x-www-form-urlencoded"), "form"),
    (re.compile(r"text/plain"), "text"),
    (re.compile(r"|application/octet-stream"), "unknown"),
    (re.compile(r".*"), "other"),
)
# Character sets that a text or JSON may have besides UTF-8, as Python names them; no other codec decodes client bytes.
CHARSETS = re.compile(
    r"utf-?(8|16|32)([-_]?[bl]e)?|(us-)?ascii|iso-8859-\d+|latin-?\d|(windows-|cp)125\d|koi8-[ru]|"
    r"shift_jis|euc-(jp|kr)|gb18030|gbk|gb2312|big5"
)


@dataclass(frozen=True, slots=True)
class BodyInfo:
    """What came with a body.

    Attributes:
        options: the other fields of its form.
        content_type: the body's media type, in lower case and without parameters; "" if its client stated none.
        reader: the reader that the media type selects.
    """

    options: Mapping[str, Any]
    content_type: str
    reader: Reader = "unknown"


@lru_cache(maxsize=256)
def reader_of(media_type: str) -> Reader:
    """Return the reader of a media type, which has no parameters and is in lower case."""
    return next(reader for pattern, reader in READERS if pattern.fullmatch(media_type))


def decode(body: bytes | bytearray, charset: str) -> str:
    if not CHARSETS.fullmatch(charset):
        raise UnsupportedMedia("The character set of Content-Type is not supported; send UTF-8.")
    try:
        return body.decode(charset)
    except UnicodeDecodeError as error:
        raise InvalidText(f"The body is not valid {charset} at byte {error.start}.") from None
    except LookupError:  # iso-8859-99
        raise UnsupportedMedia("The character set of Content-Type is not supported; send UTF-8.") from None


def form_value(value: Any) -> Any:
    """Read a value of a form, which has only text: `top_k=3` means the number."""
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else value


def parse_json(body: bytes | bytearray | memoryview | str) -> Any:
    """Read JSON; a byte order mark before it is skipped, as RFC 8259, section 8.1, allows."""
    mark = BOM if isinstance(body, str) else BOM.encode()
    try:
        return orjson.loads(body[len(mark) :] if body[: len(mark)] == mark else body)
    except orjson.JSONDecodeError as error:
        # The error says what was expected and where, and quotes nothing.
        raise MalformedJson(f"The body is not valid JSON: {error}") from None


def check_count(options: Mapping[str, Any]) -> None:
    """Refuse more options than any item has."""
    if len(options) > MOST_OPTIONS:
        raise InvalidOption(TOO_MANY.format(len(options)))


def is_inference(document: Any) -> bool:
    """Whether a JSON document is a request of the Open Inference Protocol, well-formed or not."""
    return isinstance(document, Mapping) and isinstance(document.get("inputs"), list)
