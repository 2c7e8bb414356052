"""An HTTP request as TorchServe's frontend passes it: a row and its headers. Pure.

    headers, body -> row_of -> row: the fields of a form, or the body; headers with each field's content type

`handlers.protocol.rows` takes them apart, and rejects one field too many.
"""

import binascii
import codecs
import re
from collections.abc import Mapping
from typing import Any

from deploy.protocol.rejections import MALFORMED_FORM
from handlers.protocol.rows import BODY
from handlers.protocol.wire import BOUNDARY_CHARACTERS, FORM_FIELDS, ORIGINAL_PATH_HEADER, PART_HEAD_BYTES
from torchserve_client.payloads import Json

EXPLAIN = "explain"  # every prediction of TorchServe has this header, and it replaces a client's
# As the gateway reads it.
_SIZE = f"{{1,{BOUNDARY_CHARACTERS}}}"
_BOUNDARY = re.compile(rf';\s*boundary\s*=\s*(?:"([^"\\;]{_SIZE})"|([^\s";,]{_SIZE})(?![^\s";,]))', re.IGNORECASE)
_NO_CODE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
# The pieces between a header's semicolons, as Netty splits them; possessive, so that it reads each character once.
_PIECES = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*+"?)++', re.DOTALL)
_CLEAN = str.maketrans(":,=;\t", " " * 5, '"')  # Netty's, of the name of a field


UNREADABLE = "The form cannot be decoded."  # the gateway's words


class MalformedForm(Exception):
    """The body is declared as a form but is not valid, or two fields have one name; the client reads the message."""


class Parsed(bytes):
    """A body that is parsed already: a replica in this process reads the result, one in another process the bytes."""

    content: Any

    @classmethod
    def of(cls, body: bytes, content: object) -> "Parsed":
        made = cls(body)
        made.content = content
        return made

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)


Fields = dict[str, tuple[Any, str]]  # a field's name -> its value, bytes unless it is parsed, and content type


def row_of(headers: Mapping[str, str], body: bytes, most: int, path: str = "") -> tuple[Json, Json]:
    """Return a request's row, and its headers for `Pipeline.unpack`."""
    sent: dict[str, object] = {**headers, EXPLAIN: "False"}
    sent.pop(ORIGINAL_PATH_HEADER, None)
    if path:
        sent[ORIGINAL_PATH_HEADER] = path
    content_type = headers.get("content-type", "")
    fields = None if path or len(body) > most else _fields(content_type, body)
    if fields is None:
        fields = {BODY: (body.content if isinstance(body, Parsed) else body, content_type)}
    types = {name: {"content-type": kind} for name, (_, kind) in fields.items()}
    return {name: value for name, (value, _) in fields.items()}, {**sent, **types}


def _fields(content_type: str, body: bytes) -> Fields | None:
    """Return the fields of a form, or None if the body is not a form."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/x-www-form-urlencoded":
        return _urlencoded(body)
    # The handler rejects a form without a boundary.
    found = _BOUNDARY.search(content_type) if media_type == "multipart/form-data" else None
    return _multipart(body, (found[1] or found[2]).encode("latin-1", "replace")) if found else None


def _urlencoded(body: bytes) -> Fields:
    found: Fields = {}
    *pairs, last = body.split(b"&", FORM_FIELDS)
    # As Netty: the last field needs its "=", which JSON from `curl -d` lacks. One field too many is rejected later.
    for pair in [*pairs, *([last] if b"=" in last else [])]:
        name, _, value = pair.replace(b"+", b" ").partition(b"=")
        if not name:
            raise MalformedForm(UNREADABLE)
        _add(found, _unquote(name).decode("utf-8", "replace"), _unquote(value), "")
    return found


def _unquote(text: bytes) -> bytes:
    """Decode %41 as quoted-printable's =41: a hundred times as fast as `urllib` if a body has nothing else."""
    if b"%" not in text:
        return text
    if _NO_CODE.search(text):
        raise MalformedForm(UNREADABLE)
    return binascii.a2b_qp(text.replace(b"=", b"=3D").replace(b"%", b"="))


def _multipart(body: bytes, boundary: bytes) -> Fields:
    found: Fields = {}
    # As Netty: lines may end with LF alone, and a body without a complete part has no fields.
    before, *parts = (b"\n" + body).split(b"\n--" + boundary, FORM_FIELDS + 2)
    if before.strip():
        return found
    for part in parts[:-1]:
        if part.startswith(b"--"):
            return found
        end = _HEAD_END.search(part, 0, PART_HEAD_BYTES)
        if end is None or not part.startswith((b"\n", b"\r\n")):
            raise MalformedForm(MALFORMED_FORM.message)
        name, content_type = _head(part[: end.start()].decode("utf-8", "replace"))
        _add(found, name, part[end.end() :].removesuffix(b"\r"), content_type)
    if found and len(found) <= FORM_FIELDS and not parts[-1].startswith(b"--"):
        raise MalformedForm("The form does not end with its boundary.")
    return found


def _head(lines: str) -> tuple[str, str]:
    """Return the name of a part and the content type of a file; TorchServe does not know that of a plain field."""
    head = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines.split("\n"))}
    disposition, content_type = head.get("content-disposition", ""), head.get("content-type", "")
    found = dict(_parameters(disposition))
    name = found.get("name", "").translate(_CLEAN).strip()
    if not name or content_type.lower().startswith("multipart/mixed"):
        raise MalformedForm(MALFORMED_FORM.message)
    charsets = {dict(_parameters(content_type)).get("charset", ""), found.get("filename*", "").partition("'")[0]}
    if disposition.partition(";")[0].strip().lower() != "form-data" or not all(map(_is_charset, charsets - {""})):
        raise MalformedForm(UNREADABLE)
    return name, content_type if found.keys() & {"filename", "filename*"} else ""


def _is_charset(name: str) -> bool:
    try:
        return bool(codecs.lookup(name.strip('"')))
    except (LookupError, ValueError):
        return False


def _parameters(header: str) -> list[tuple[str, str]]:
    """Return the parameters of a header; their names are in lower case."""
    pairs = (piece.partition("=") for piece in _PIECES.findall(header)[1:])
    return [(name.strip().lower(), value.strip()) for name, _, value in pairs]


def _add(found: Fields, name: str, value: bytes, content_type: str) -> None:
    if name in found:
        raise MalformedForm(MALFORMED_FORM.message)
    found[name] = (value, content_type)
