"""An HTTP request as TorchServe's frontend passes it: a row and its headers. Pure.

    headers, body -> row_of -> row: the fields of a form, or the body; headers with each field's content type

`handlers.protocol.rows` takes them apart, and has the limits of a body and of its fields.
"""

import binascii
import re
from collections.abc import Mapping
from typing import Any

# As in handlers.protocol.rows, which is the archive's own here: one field more is refused there.
BODY, MOST_FIELDS, ORIGINAL_PATH = "body", 200, "x-envoy-original-path"
EXPLAIN = "explain"  # every prediction of TorchServe has this header, and it replaces a client's
MOST_HEAD_BYTES = 1024  # bytes of a part's head
_NO_CODE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
# The pieces between a header's semicolons, as Netty splits them; possessive, so that it reads each character once.
_PIECES = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*+"?)++', re.DOTALL)
_CLEAN = str.maketrans(":,=;\t", " " * 5, '"')  # Netty's, of the name of a field


class MalformedForm(Exception):
    """The body is declared as a form but is not valid, or two fields have one name; the client reads the message."""


Fields = dict[str, tuple[bytes, str]]  # a field's name -> its value and content type


def row_of(
    headers: Mapping[str, str], body: bytes, most: int, path: str = ""
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return a request's row, and its headers for `Pipeline.unpack`."""
    sent: dict[str, Any] = {**headers, EXPLAIN: "False"}
    sent.pop(ORIGINAL_PATH, None)
    if path:
        sent[ORIGINAL_PATH] = path
    content_type = headers.get("content-type", "")
    fields = None if path or len(body) > most else _fields(content_type, body)
    if fields is None:
        fields = {BODY: (body, content_type)}
    types = {name: {"content-type": kind} for name, (_, kind) in fields.items()}
    return {name: value for name, (value, _) in fields.items()}, {**sent, **types}


def _fields(content_type: str, body: bytes) -> Fields | None:
    """Return the fields of a form, or None if the body is not a form."""
    media_type = content_type.partition(";")[0].strip()
    if media_type == "application/x-www-form-urlencoded":
        return _urlencoded(body)
    # TorchServe does not parse a body whose type is in capitals or lacks the boundary.
    if media_type != "multipart/form-data":
        return None
    # As in the gateway, the first counts.
    boundary = dict(reversed(_parameters(content_type))).get("boundary", "").strip('"')
    return _multipart(body, boundary.encode("latin-1", "replace")) if boundary else None


def _urlencoded(body: bytes) -> Fields:
    found: Fields = {}
    *pairs, last = body.split(b"&", MOST_FIELDS)
    # As Netty: the last field needs its "=", which JSON from `curl -d` lacks. One field too many is refused later.
    for pair in [*pairs, *([last] if b"=" in last else [])]:
        name, _, value = pair.replace(b"+", b" ").partition(b"=")
        if name:
            _add(found, _unquote(name).decode("utf-8", "replace"), _unquote(value), "")
    return found


def _unquote(text: bytes) -> bytes:
    """Decode %41 as quoted-printable's =41: a hundred times as fast as `urllib` if a body has nothing else."""
    if b"%" not in text:
        return text
    if _NO_CODE.search(text):
        raise MalformedForm("The form has a % without two hexadecimal digits.")
    return binascii.a2b_qp(text.replace(b"=", b"=3D").replace(b"%", b"="))


def _multipart(body: bytes, boundary: bytes) -> Fields:
    found: Fields = {}
    # As Netty: lines may end with LF alone.
    before, *parts = (b"\n" + body).split(b"\n--" + boundary, MOST_FIELDS + 2)
    if before.strip():
        raise MalformedForm("The form does not begin with the boundary of its Content-Type.")
    for part in parts:
        if part.startswith(b"--") or len(found) > MOST_FIELDS:
            return found
        end = _HEAD_END.search(part, 0, MOST_HEAD_BYTES)
        if end is None:
            raise MalformedForm(f"A part of the form has no end of its headers in {MOST_HEAD_BYTES} bytes.")
        name, content_type = _head(part[: end.start()].decode("utf-8", "replace"))
        _add(found, name, part[end.end() :].removesuffix(b"\r"), content_type)
    raise MalformedForm("The form does not end with its boundary.")


def _head(lines: str) -> tuple[str, str]:
    """Return the name of a part and the content type of a file; TorchServe does not know that of a plain field."""
    head = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines.split("\n"))}
    found = dict(_parameters(head.get("content-disposition", "")))
    if not (name := found.get("name", "").translate(_CLEAN).strip()):
        raise MalformedForm("A part of the form has no name.")
    return name, head.get("content-type", "") if found.keys() & {"filename", "filename*"} else ""


def _parameters(header: str) -> list[tuple[str, str]]:
    """Return the parameters of a header; their names are in lower case."""
    pairs = (piece.partition("=") for piece in _PIECES.findall(header)[1:])
    return [(name.strip().lower(), value.strip()) for name, _, value in pairs]


def _add(found: Fields, name: str, value: bytes, content_type: str) -> None:
    if name in found:
        raise MalformedForm("Two fields of the form have one name.")
    found[name] = (value, content_type)
