"""Find the body of a row, within its limits, choose its reader by its media type, and read JSON. Pure.

row (dict from TorchServe), its headers -> body_of -> name of the field, its value, and BodyInfo
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import orjson

from handlers.config import MOST_OPTIONS, TOO_MANY
from handlers.errors import (
    BodyTooLarge,
    EmptyInput,
    InvalidText,
    MalformedJson,
    UnknownOption,
    UnknownShape,
    UnsupportedMedia,
)
from handlers.protocol.headers import content_type, header

# The names under which TorchServe hands over a body and under which its handlers look for an input.
BODY, DATA = "body", "data"
BOM = "\ufeff"

# The most fields of a form, as many as the gateway lets through: a worker spends microseconds on each.
MOST_FIELDS = 200

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
UTF8_CHARSETS = ("", "utf-8", "utf8")


@dataclass(frozen=True, slots=True)
class BodyInfo:
    """What came with a body.

    Attributes:
        options: the other fields of its form.
        content_type: the body's media type, in lower case and without parameters; "" if its client stated none.
        headers: the request's, as TorchServe has them.
        reader: the reader that the media type selects.
    """

    options: Mapping[str, Any]
    content_type: str
    headers: Mapping[str, Any]
    reader: Reader = "unknown"


def body_of(row: Mapping[str, Any], headers: Mapping[str, Any], max_body_bytes: int) -> tuple[str, Any, BodyInfo]:
    """Find the body of a row.

    Returns:
        The name of its field; bytes or text, at least one byte of it, or JSON that TorchServe has decoded; and what
        came with it.

    Raises:
        InvalidInput: it is compressed, too large or empty, a form without a field for the input, or in a character
            set that is not supported.
    """
    if len(row) > MOST_FIELDS:
        raise BodyTooLarge(f"The form has more than {MOST_FIELDS} fields.")
    codings = (header(headers, "Content-Encoding") or "").lower().split(",")
    if any(coding.strip() not in ("", "identity") for coding in codings):  # RFC 9110, 8.4: names without regard to case
        raise UnsupportedMedia("The body is compressed, as Content-Encoding says; send it as it is.")
    size = sum(len(value) for value in row.values() if isinstance(value, bytes | bytearray | str))
    if size > max_body_bytes:
        raise BodyTooLarge(f"The body has {size} bytes; max_body_bytes is {max_body_bytes}.")
    name, options = _input_field(row)
    value = row[name]
    if isinstance(value, bytes | bytearray | str) and not value:
        raise EmptyInput("The body is empty.")
    media_type, charset = content_type(headers, name)
    reader = reader_of(media_type)
    if charset not in UTF8_CHARSETS and reader in ("json", "text") and isinstance(value, bytes | bytearray):
        value = _decode(value, charset)
    return name, value, BodyInfo(options, media_type, headers, reader)


@lru_cache(maxsize=256)
def reader_of(media_type: str) -> Reader:
    """Return the reader of a media type, which has no parameters and is in lower case."""
    return next(reader for pattern, reader in READERS if pattern.fullmatch(media_type))


def _decode(body: bytes | bytearray, charset: str) -> str:
    if not CHARSETS.fullmatch(charset):
        raise UnsupportedMedia("The character set of Content-Type is not supported; send UTF-8.")
    try:
        return body.decode(charset)
    except UnicodeDecodeError as error:
        raise InvalidText(f"The body is not valid {charset} at byte {error.start}.") from None
    except LookupError:  # iso-8859-99
        raise UnsupportedMedia("The character set of Content-Type is not supported; send UTF-8.") from None


def _input_field(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name the field that carries the input, and take the others as options."""
    if BODY in row or DATA in row:
        name = BODY if BODY in row else DATA
    elif len(row) == 1:
        (name,) = row
        if name.startswith("{") or not row[name]:  # `curl -d '{...}'`: a form whose only field is named like the body
            raise UnknownShape("The body came as a form without values. For JSON, send Content-Type: application/json.")
    elif row:
        raise UnknownShape(f"The form has {len(row)} fields; name the one with the input {DATA!r}.")
    else:
        raise EmptyInput("The body is empty, or a form without fields. For JSON, send Content-Type: application/json.")
    options = {other: value for other, value in row.items() if other != name}
    check_count(options)
    return name, {other: _form_value(value) for other, value in options.items()}


def _form_value(value: Any) -> Any:
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
        raise UnknownOption(TOO_MANY.format(len(options)))
