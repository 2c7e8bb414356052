"""Read bodies: media types, character sets, JSON. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import orjson

from handlers.config import MOST_OPTIONS, TOO_MANY
from handlers.errors import BodyTooLarge, InvalidBody, InvalidOption, InvalidText, MalformedJson, UnsupportedMedia

TENSOR = {"name", "shape", "datatype", "data", "parameters"}  # the fields of a tensor of the Open Inference Protocol
BOM = "\ufeff"
MOST_CONTAINERS = 500_000  # lists and objects of a body: eight images of 224 x 224 as nested lists have 400,000
ESCAPED = re.compile(rb"\\u00(?:6[dDfF45cC])")  # a letter of "model" that a client writes by its number
# An unterminated text is one match, too: else each quote in it is tried again, up to the end.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
MOST_COMPARED = 1 << 20  # bytes of a body whose names are compared

Reader = Literal["json", "form", "text", "unknown", "other"]
# Media types (RFC 9110, section 8.3.1; RFC 6839 for +json) and their readers; the first pattern that matches decides.
# A client without a type, or with application/octet-stream, does not state what the body contains.
READERS: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (re.compile(r"(application|text)/json|[^/]+/.+\+json"), "json"),
    (re.compile(r"multipart/.*|application/x-www-form-urlencoded"), "form"),
    (re.compile(r"text/plain"), "text"),
    (re.compile(r"|application/octet-stream"), "unknown"),
    (re.compile(r".*"), "other"),
)
# Character sets of texts and JSON besides UTF-8, by Python's names; no other codec decodes clients' bytes.
CHARSETS = re.compile(
    r"utf-?(8|16|32)([-_]?[bl]e)?|(us-)?ascii|iso-8859-\d+|latin-?\d|(windows-|cp)125\d|koi8-[ru]|"
    r"shift_jis|euc-(jp|kr)|gb18030|gbk|gb2312|big5"
)


@dataclass(frozen=True, slots=True)
class BodyInfo:
    """The options and the media type of a body."""

    options: Mapping[str, object]  # the other fields of its form
    content_type: str  # the media type, in lower case and without parameters; "" if its client stated none
    reader: Reader = "unknown"
    is_piped: bool = False  # whether its client expects the answers of transformers' pipelines


@lru_cache(maxsize=256)
def reader_of(media_type: str) -> Reader:
    """Return the reader of a media type in lower case, without parameters."""
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


def form_value(value: Any) -> object:
    """Read a value of a form: `top_k=3` is a number."""
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else value


def parse_json(body: bytes | bytearray | memoryview | str) -> object:
    """Read JSON, without the byte order mark that RFC 8259, section 8.1, allows to skip."""
    if len(body) > MOST_CONTAINERS:
        _check_containers(bytes(body) if isinstance(body, memoryview) else body)
    mark = BOM if isinstance(body, str) else BOM.encode()
    try:
        return orjson.loads(body[len(mark) :] if body[: len(mark)] == mark else body)
    except orjson.JSONDecodeError as error:
        # The error has the place and what was expected, and no part of the body.
        raise MalformedJson(f"The body is not valid JSON: {error}") from None


def _check_containers(body: bytes | bytearray | str) -> None:
    """Reject too many lists and objects: two million empty ones take Python's lock for a second, and 120 MB."""
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    is_many = body.count(b"[") + body.count(b"{") > MOST_CONTAINERS
    # Those in texts are none.
    if is_many and sum(map(_STRING.sub(b"", body).count, (b"[", b"{"))) > MOST_CONTAINERS:
        raise BodyTooLarge(f"The body has more than {MOST_CONTAINERS} lists and objects.")


def parse_api(body: bytes | bytearray | memoryview | str) -> object:
    """Read JSON whose "model" a gateway reads too: a second one, maybe escaped, could name another model."""
    document = parse_json(body)
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
    if raw.count(b'"model"') > 1 or ESCAPED.search(raw):
        if len(raw) > MOST_COMPARED:
            raise InvalidBody(f"model: a body of over {MOST_COMPARED} bytes has it once, without escapes.")
        try:
            json.loads(raw.removeprefix(BOM.encode()), object_pairs_hook=_unique)
        except RecursionError:
            raise MalformedJson("The body is not valid JSON: it is nested too deeply.") from None
    return document


def _unique(pairs: list[tuple[str, object]]) -> None:
    if sum(name == "model" for name, _ in pairs) > 1:
        raise InvalidBody("model: the body has it twice.")


def check_count(options: Mapping[str, object]) -> None:
    """Reject more than MOST_OPTIONS."""
    if len(options) > MOST_OPTIONS:
        raise InvalidOption(TOO_MANY.format(len(options)))


def is_inference(document: object) -> bool:
    """Whether a JSON document is an Open Inference request, valid or not: its inputs are not texts or a task's own."""
    if not isinstance(document, Mapping) or not isinstance(inputs := document.get("inputs"), list):
        return False
    first = inputs[0] if inputs else None
    return not isinstance(first, str) and not (isinstance(first, dict) and first and not TENSOR & first.keys())
