"""Requests by seed and number: valid ones, and what is left of them after a few changes.

seed, task, number -> Draw -> items and options -> form -> structure changed -> bytes changed -> headers -> Sent
"""

from typing import Any

from handlers.protocol.grpc_status import PROTOBUF
from tests.fuzz import documents, headers, messages, tensors, values
from tests.fuzz.documents import Object, document
from tests.fuzz.kinds import MAX_INSTANCES, Item, Kind
from tests.fuzz.sent import Part, Sent, body
from tests.fuzz.tensors import Tensor
from tests.fuzz.values import CANARY, Draw

JSON_TYPES = ("application/json", "application/json", "application/json", "", "application/json; charset=utf-8")
# A request has so many items, by how often; limits and one beyond are among them.
COUNTS = (0, 1, 1, 1, 2, 3, 5, MAX_INSTANCES - 1, MAX_INSTANCES, MAX_INSTANCES + 1)
CHANGED_BYTES, ODD_WIRE = 0.12, 0.06
WIRES = ("cut", "no boundary", "another boundary", "chunked", "GET", "PUT")


def neighbours(kind: Kind, seed: int) -> list[Sent]:
    """Valid requests of a task, whose answers must stay what they are."""
    draw = Draw(f"{seed}/{kind.name}/neighbours")
    items = [{**kind.item(draw), **_languages(kind)} for _ in range(12)]
    return [
        *(body(documents.written(document(item)), "application/json") for item in items[3:]),
        body(documents.written(document({"instances": items[:3]})), "application/json"),
    ]


def request(kind: Kind, seed: int, number: int) -> Sent:
    """Make one request; the same arguments make the same one, on any machine with the same libraries."""
    draw = Draw(f"{seed}/{kind.name}/{number}")
    sent = draw.of(
        (2, lambda: _raw(kind, draw)),
        (2, lambda: _form(kind, draw)),
        (4, lambda: _json(kind, draw)),
        (2, lambda: _inference(kind, draw)),
        (2, lambda: _binary(kind, draw)),
        (2, lambda: _grpc(kind, draw)),
    )
    if draw.often(CHANGED_BYTES):
        sent = _changed_bytes(kind, draw, sent)
    drawn, may_time_out = headers.headers(draw, size=sent.size)
    is_inference = sent.is_inference or "Inference-Header-Content-Length" in drawn
    wire = draw.choice(WIRES) if draw.often(ODD_WIRE) else ""
    return sent.but(headers={**sent.headers, **drawn}, may_time_out=may_time_out, is_inference=is_inference, wire=wire)


def _languages(kind: Kind) -> dict[str, Any]:
    """A model of many languages has to be told which."""
    return {"src_lang": "en", "tgt_lang": "fr"} if kind.name == "translation" else {}


def _item(kind: Kind, draw: Draw) -> Item:
    return kind.odd_item(draw) if draw.often(0.35) else kind.item(draw)


def _options(kind: Kind, draw: Draw) -> dict[str, Any]:
    """Options as a client sends them: most valid, one in five with a value or name that is not."""
    chosen = {**_languages(kind), **kind.chosen(draw)}
    if draw.often(0.1) and kind.options:
        chosen[draw.choice(list(kind.options))] = values.value(draw)
    if draw.often(0.1):
        chosen[values.name(draw)] = values.value(draw, 1)
    return chosen


def _raw(kind: Kind, draw: Draw) -> Sent:
    item = _item(kind, draw)
    if len(item) > 1:
        return body(documents.written(document(item)), draw.choice(headers.CONTENT_TYPES), how=("raw",))
    return body(kind.raw(draw, item), draw.choice(headers.CONTENT_TYPES), how=("raw",))


def _form(kind: Kind, draw: Draw) -> Sent:
    """A form: the input in one field, options in others; now and then whole JSON in a field."""
    item, parts = _item(kind, draw), []
    if len(item) > 1 or draw.often(0.2):
        value = documents.written(document(item))
        parts.append(Part("data", draw.one("application/json", "application/json", "", "text/plain"), value))
    else:
        field = draw.one(*["data"] * 8, "body", "image", "", CANARY)
        parts.append(Part(field, draw.choice(headers.CONTENT_TYPES), kind.raw(draw, item)))
    for name, option in _options(kind, draw).items():
        value = (
            option.encode("utf-8", "surrogatepass") if isinstance(option, str) else documents.written(document(option))
        )
        parts.append(Part(name.encode("utf-8", "replace").decode(), draw.one("", "", "application/json"), value))
    if draw.often(0.05):
        parts += [Part(f"{CANARY}{index}", "", b"1") for index in range(draw.one(10, 500))]
    if draw.often(0.05):
        parts = parts[1:]
    draw.shuffle(parts)
    return Sent(tuple(parts), draw.one("multipart", "multipart", "urlencoded"), how=("form",))


def _document(kind: Kind, draw: Draw) -> Any:
    """One item, or a list of them, options inside and outside."""
    if draw.often(0.5):
        return document({**_item(kind, draw), **_options(kind, draw)})
    count = draw.choice(COUNTS)
    items = [{**_item(kind, draw), **(_options(kind, draw) if draw.often(0.2) else {})} for _ in range(count)]
    if len(items) > 2:
        items[1:] = [items[1]] * (count - 1) if draw.often(0.3) else items[1:]
    return document({"instances": items, **_options(kind, draw)})


def _changed(draw: Draw, tree: Any, how: tuple[str, ...], most: int = 4) -> tuple[Any, tuple[str, ...]]:
    """Change a document in up to so many places, half of them in none."""
    for _ in range(draw.one(*[0] * most, *range(1, most + 1))):
        tree, change = documents.mutate(tree, draw, lambda: values.value(draw), lambda: values.name(draw))
        how = (*how, change)
    return tree, how


def _json(kind: Kind, draw: Draw) -> Sent:
    tree, how = _changed(draw, _document(kind, draw), ("json",))
    if draw.often(0.02):
        return body(values.deep(draw).text.encode(), draw.choice(JSON_TYPES), how=("json", "deep"))
    return body(documents.written(tree, is_ascii=draw.often(0.3)), draw.choice(JSON_TYPES), how=how)


def _tensors(kind: Kind, draw: Draw, *, is_binary: bool) -> list[Tensor]:
    if kind.name == "image_classification" and draw.often(0.4):
        return [_pixels(draw, is_binary=is_binary)]
    count = draw.choice(COUNTS) or 1
    made = kind.tensors(draw, [_item(kind, draw) for _ in range(count)], is_binary=is_binary)
    if draw.often(0.15):
        made.append(Tensor(values.name(draw), "BYTES", (1,), [b"x"]))
    draw.shuffle(made)
    return made


def _pixels(draw: Draw, *, is_binary: bool) -> Tensor:
    """Images that their client has decoded."""
    height, width = draw.one((1, 1), (8, 8), (33, 17), *(((1000, 1), (300, 300)) if is_binary else ()))
    shape: tuple[int, ...] = (height, width, draw.one(3, 3, 3, 1, 4))
    if draw.often(0.7):
        shape = (draw.one(1, 2, MAX_INSTANCES, MAX_INSTANCES + 1), *shape)
    size = 1
    for side in shape:
        size *= side
    return Tensor("image", draw.one("UINT8", "UINT8", "UINT8", "INT16", "FP32"), shape, [draw.randrange(100)] * size)


def _parameters(kind: Kind, draw: Draw) -> dict[str, Any]:
    return _options(kind, draw)


def _lied(draw: Draw, tree: Any, how: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    if draw.often(0.35):
        how = (*how, tensors.lie(draw, tree))
    return _changed(draw, tree, how, 2)


def _inference(kind: Kind, draw: Draw) -> Sent:
    tree = tensors.inquiry(draw, _tensors(kind, draw, is_binary=False), _parameters(kind, draw))
    tree, how = _lied(draw, tree, ("inference json",))
    return body(documents.written(tree), draw.choice(JSON_TYPES), how=how, is_inference=True)


def _binary(kind: Kind, draw: Draw) -> Sent:
    tree, blobs = tensors.binary(draw, _tensors(kind, draw, is_binary=True), _parameters(kind, draw))
    tree, how = _lied(draw, tree, ("inference binary",))
    if draw.often(0.25):
        blobs, how = tensors.lying_blobs(draw, blobs), (*how, "lying bytes")
    head = documents.written(tree)
    sent = body(b"".join([head, *blobs]), draw.one("", "application/octet-stream", "application/json"), how=how)
    name = draw.one("Inference-Header-Content-Length", "inference-header-content-length")
    return sent.but(headers={name: tensors.header(draw, len(head))}, is_inference=True)


def _grpc(kind: Kind, draw: Draw) -> Sent:
    written, how = messages.message(draw, _tensors(kind, draw, is_binary=True), _parameters(kind, draw))
    return body(written, PROTOBUF, how=how)


def _changed_bytes(kind: Kind, draw: Draw, sent: Sent) -> Sent:
    """Cut, flip, insert or repeat bytes of one part, or grow it to the limit of a body."""
    if not sent.parts:
        return sent
    index = draw.randrange(len(sent.parts))
    part = sent.parts[index]
    value = bytearray(part.value)
    place = draw.randint(0, len(value))
    change = draw.one("cut", "flip", "insert", "repeat", "grown")
    if change == "cut":
        del value[place:]
    elif change == "flip":
        for _ in range(draw.one(1, 3, 30) if value else 0):
            value[draw.randrange(len(value))] ^= 1 << draw.randrange(8)
    elif change == "insert":
        value[place:place] = draw.one(
            b"\0", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80\x80", b'"', b"\\u0000", b"{"
        )
    elif change == "repeat":
        value[place:place] = value[place : place + 200] * draw.one(1, 10)
    else:
        limit = kind.max_body_bytes + draw.one(-1, 0, 1)
        value = (value + draw.one(b" ", b"\0", b"a", b"[") * max(0, limit - len(value)))[:limit]
    parts = (*sent.parts[:index], Part(part.name, part.content_type, bytes(value)), *sent.parts[index + 1 :])
    return sent.but(f"bytes: {change}", parts=parts)


__all__ = ["Object", "neighbours", "request"]
