"""One request as a client sends it, the same for every way to send it.

Sent -> fields     what TorchServe's frontend makes of it for the worker
     -> http       a content type, headers and a body
     -> to_json    a file of found/, and back
"""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote_plus

# How parts travel: one as the body itself, any number as a form.
Form = Literal["body", "multipart", "urlencoded"]
# What is wrong with the request as HTTP has it; only a server sees it.
Wire = Literal["", "cut", "no boundary", "another boundary", "chunked", "GET", "PUT"]
BOUNDARY = "fuzz-f1d0a7"
# A run of at least so many equal bytes is written as one piece and a count.
SHORTEST_RUN = 64
# What a client could not put into a header: HTTP itself would end it there.
UNSENDABLE = re.compile(r"[\r\n\0]")


@dataclass(frozen=True, slots=True)
class Part:
    """A field of a form, or the body.

    Attributes:
        name: of the field; `body` for a body.
        content_type: as sent; "" for none.
        value: its bytes.
    """

    name: str
    content_type: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """A request.

    Attributes:
        parts: the fields of the form, or the one body.
        form: how they travel.
        headers: those beside Content-Type.
        how: what was done to a valid request, in words.
        is_inference: whether it claims to be of the Open Inference Protocol, whose errors are written in another way.
        may_time_out: whether it asks for so little time that 504 is an answer.
        wire: what is odd about it as HTTP.
    """

    parts: tuple[Part, ...]
    form: Form = "body"
    headers: Mapping[str, str] = field(default_factory=dict)
    how: tuple[str, ...] = ()
    is_inference: bool = False
    may_time_out: bool = False
    wire: Wire = ""

    @property
    def size(self) -> int:
        """The bytes of all parts."""
        return sum(len(part.value) for part in self.parts)

    def but(self, *how: str, **changes: Any) -> "Sent":
        """Copy it with changes, and with more words on what was done."""
        return replace(self, how=(*self.how, *how), **changes)


def body(value: bytes, content_type: str = "", **more: Any) -> Sent:
    """Make a request of a body."""
    return Sent((Part("body", content_type, value),), **more)


def http(sent: Sent) -> tuple[dict[str, str], bytes]:
    """Write the headers and the body."""
    headers, content = _http(sent)
    content_type = headers.get("Content-Type", "")
    if sent.wire == "no boundary":
        return {**headers, "Content-Type": content_type.partition(";")[0]}, content
    if sent.wire == "another boundary":
        return {**headers, "Content-Type": f"multipart/form-data; boundary={BOUNDARY}x"}, content
    return headers, content[: len(content) // 2] if sent.wire == "cut" else content


def _http(sent: Sent) -> tuple[dict[str, str], bytes]:
    headers = {name: value for name, value in sent.headers.items() if not UNSENDABLE.search(name + value)}
    if sent.form == "body":
        (part,) = sent.parts
        return ({**headers, "Content-Type": part.content_type} if part.content_type else headers), part.value
    if sent.form == "urlencoded":
        pairs = (quote_plus(part.name.encode("utf-8", "replace")) + "=" + quote_plus(part.value) for part in sent.parts)
        return {**headers, "Content-Type": "application/x-www-form-urlencoded"}, "&".join(pairs).encode()
    pieces: list[bytes] = []
    for part in sent.parts:
        name = part.name.encode("utf-8", "replace").replace(b'"', b"%22").replace(b"\r", b"%0D").replace(b"\n", b"%0A")
        head = b'--%s\r\nContent-Disposition: form-data; name="%s"; filename="f"\r\n' % (BOUNDARY.encode(), name)
        kind = b"Content-Type: %s\r\n" % part.content_type.encode() if part.content_type else b""
        pieces += [head, kind, b"\r\n", part.value, b"\r\n"]
    pieces.append(b"--%s--\r\n" % BOUNDARY.encode())
    return {**headers, "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}, b"".join(pieces)


def to_json(sent: Sent) -> dict[str, Any]:
    """Write it as a file of found/ has it."""
    return {
        "form": sent.form,
        "headers": dict(sent.headers),
        "how": list(sent.how),
        "is_inference": sent.is_inference,
        "may_time_out": sent.may_time_out,
        "wire": sent.wire,
        "parts": [
            {"name": part.name, "content_type": part.content_type, "value": _pieces(part.value)} for part in sent.parts
        ],
    }


def from_json(document: Mapping[str, Any]) -> Sent:
    """Read what `to_json` wrote, or what was written by hand."""
    parts = (Part(part["name"], part.get("content_type", ""), _joined(part["value"])) for part in document["parts"])
    return Sent(
        tuple(parts),
        document.get("form", "body"),
        document.get("headers", {}),
        tuple(document.get("how", ())),
        document.get("is_inference", False),
        document.get("may_time_out", False),
        wire=document.get("wire", ""),
    )


def _pieces(value: bytes) -> list[Any]:
    """Write bytes as [piece, times] pairs, so that long runs stay short: text where it is plain, else base64."""
    pieces: list[Any] = []
    start = 0
    for run in re.finditer(rb"(?s)(.)\1{%d,}" % (SHORTEST_RUN - 1), value):
        pieces += _piece(value[start : run.start()], 1) + _piece(run[1], len(run[0]))
        start = run.end()
    return pieces + _piece(value[start:], 1)


def _piece(value: bytes, times: int) -> list[Any]:
    if not value:
        return []
    if value.isascii() and value.decode().isprintable():
        return [[{"text": value.decode()}, times]]
    return [[{"base64": base64.b64encode(value).decode()}, times]]


def _joined(pieces: Sequence[Any]) -> bytes:
    with io.BytesIO() as joined:
        for piece, times in pieces:
            raw = piece["text"].encode() if "text" in piece else base64.b64decode(piece["base64"])
            joined.write(raw * times)
        return joined.getvalue()
