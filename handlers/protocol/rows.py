"""Unpack TorchServe's rows into items. Pure: no sockets, no context.

    row (dict from TorchServe), Headers -> unpack -> Request: one payload per item, and the form of the answer
    one result per item -> Request.form.pack -> Response (status, body and headers of that row; protocol.responses)

The media type selects the reader of a body (bodies.READERS); the task makes items of its contents (Items):

    raw bytes, text                             Items.of_body
    multipart or form, a field `data`           its own media type decides; other fields are options
    a form of the task's inputs by their names  one item, as of a JSON object
    JSON                                        Items.of_json
    no type, or application/octet-stream        JSON if it parses as an object or list with fields of the task
    POST /v2/models/M/infer through a gateway   JSON, whatever the type
    {"inputs": [tensor, ...], ...}              Open Inference Protocol: tensors, Items.of_tensors
    application/x-protobuf                      Open Inference Protocol by gRPC (protocol.grpc_inference)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from handlers.aliases import Array
from handlers.errors import (
    BodyTooLarge,
    EmptyInput,
    InvalidBody,
    InvalidInput,
    ItemError,
    MalformedJson,
    OtherVectorSpace,
    UnsupportedMedia,
    show_name,
)
from handlers.protocol import open_inference
from handlers.protocol.bodies import BOM, BodyInfo, check_count, decode, form_value, is_inference, parse_json, reader_of
from handlers.protocol.codings import UNSUPPORTED, codings_of
from handlers.protocol.headers import UTF8_CHARSETS, Headers, content_type, has_two_types, read_headers
from handlers.protocol.output_tensors import Model
from handlers.protocol.requests import Items, Request
from handlers.protocol.responses import Form, GrpcErrors, OneItem
from handlers.protocol.wire import FORM_FIELDS, LENGTH_HEADER, ORIGINAL_PATH_HEADER, PROTOBUF, SPACE_HEADER

# Tasks import them from here.
__all__ = ["Headers", "Shape", "body_of", "fail_request", "read_headers", "unpack"]

BODY = "body"  # TorchServe's name of a body
DATA = "data"  # the field of a form that TorchServe's handlers read
# Inputs that are texts, so that a field "2024" is not a number.
TEXT_INPUTS = frozenset({"text", "question", "context", "query", "document"})
TEXT = ("text/plain",)  # the media types of a task whose only inputs are texts
_HEAD = 64  # characters at the start of a body that are searched for the start of JSON, behind white space
# Hugging Face's clients for Python and JavaScript, by their User-Agent: they send an image's file as it is, and read
# only the answers of transformers' pipelines.
PIPED_CLIENTS = re.compile(r"\bhf_hub/|@huggingface/inference")


@dataclass(frozen=True, slots=True)
class Shape:
    """The requests that a task accepts."""

    items: Items
    max_body_bytes: int  # the sum of all fields, if the body is a form
    model: Model = field(default_factory=Model)
    inputs: frozenset[str] = frozenset()
    max_request_items: int = 1
    api: str | None = None  # the API of handlers.protocol.retrieval, if the task has one
    also: tuple[str, ...] = ()  # others that it has
    media_types: tuple[str, ...] = ()  # media types of bodies other than JSON and forms; see `Hooks`
    only_values: Mapping[str, object] = field(default_factory=dict)  # see `Hooks`
    ranges: Array | None = None  # see `Hooks`
    is_mean: bool = False  # see `Results`
    vector_space: str = ""  # the identity of its vectors


def unpack(row: Mapping[str, object], headers: Headers, shape: Shape) -> Request:
    """Unpack one row."""
    try:
        check_space(headers, shape)
        if names := _named_inputs(row, shape):
            return _from_fields(names, row, headers, shape)
        return _from_row(row, headers, shape)
    except InvalidInput as error:
        return Request((ItemError.of(error),), _error_form(headers, shape.model))


def check_space(headers: Headers, shape: Shape) -> None:
    """Reject a client that expects vectors of another space than the model's."""
    if (asked := headers.get(SPACE_HEADER, shape.vector_space)) != shape.vector_space:
        own = shape.vector_space or "none"
        raise OtherVectorSpace(f"X-Vector-Space: {show_name(asked)} is not the space of this model, which is {own}.")


def _from_row(row: Mapping[str, object], headers: Headers, shape: Shape) -> Request:
    is_protobuf = _is_protobuf(headers)
    length = None if is_protobuf else headers.get(LENGTH_HEADER.lower())
    _, value, sent = body_of(row, headers, shape.max_body_bytes)
    if is_protobuf:
        return _from_grpc(value, sent.options, shape)
    if not isinstance(value, bytes | bytearray | str):
        return _from_json(value, sent, shape)
    if length is not None:
        document, binary = open_inference.split(value, length)
        return _from_inference(parse_json(document), binary, sent.options, shape)
    if _is_inference_path(headers):
        return _from_inference(parse_json(value), memoryview(b""), sent.options, shape)
    return _from_body(value, sent, shape)


def fail_request(headers: Headers, error: ItemError) -> Request:
    """Return a request that fails whole, with an answer in the form that its headers imply."""
    return Request((error,), _error_form(headers, Model()))


def _error_form(headers: Headers, model: Model) -> Form:
    if _is_protobuf(headers):
        return GrpcErrors()
    is_inference = headers.get(LENGTH_HEADER.lower()) is not None or _is_inference_path(headers)
    return open_inference.Inference(model) if is_inference else OneItem()


def _is_inference_path(headers: Headers) -> bool:
    """Whether the path was the Open Inference Protocol's before a gateway rewrote it."""
    return headers.get(ORIGINAL_PATH_HEADER, "").startswith("/v2/models/")


def _is_protobuf(headers: Headers) -> bool:
    return content_type(headers, BODY)[0] == PROTOBUF


def body_of(row: Mapping[str, object], headers: Headers, max_body_bytes: int) -> tuple[str, object, BodyInfo]:
    """Find a row's body: its field's name, its value (bytes or text, not empty, or parsed JSON), and its BodyInfo."""
    _check_row(row, headers, max_body_bytes)
    name, options = _input_field(row)
    value = row[name]
    if isinstance(value, bytes | bytearray | str) and not value:
        raise EmptyInput("The body is empty.")
    if name == BODY and has_two_types(headers, name):
        raise UnsupportedMedia("Content-Type: the request has two of them.")
    value, media_type = _decoded(row, headers, name)
    return name, value, BodyInfo(options, media_type, reader_of(media_type), _is_piped(headers.get("user-agent", "")))


@lru_cache(maxsize=256)
def _is_piped(user_agent: str) -> bool:
    return bool(PIPED_CLIENTS.search(user_agent))


def _decoded(row: Mapping[str, Any], headers: Headers, name: str) -> tuple[object, str]:
    """Return a field's value, as text if it has a character set, and its media type."""
    value = row[name]
    media_type, charset = content_type(headers, name)
    is_text = reader_of(media_type) in ("json", "text") and isinstance(value, bytes | bytearray)
    return decode(value, charset) if is_text and charset not in UTF8_CHARSETS else value, media_type


def _check_row(row: Mapping[str, object], headers: Headers, max_body_bytes: int) -> None:
    if len(row) > FORM_FIELDS:
        raise BodyTooLarge(f"The form has more than {FORM_FIELDS} fields.")
    if "content-encoding" in headers and codings_of(headers["content-encoding"]):
        raise UnsupportedMedia(UNSUPPORTED)
    size = sum([len(value) for value in row.values() if isinstance(value, bytes | bytearray | str)])
    if size > max_body_bytes:
        raise BodyTooLarge(f"The body has {size} bytes; max_body_bytes is {max_body_bytes}.")


def _named_inputs(row: Mapping[str, object], shape: Shape) -> set[str]:
    """Return the fields of a form that are inputs of the task by their names; none if one field is the whole input."""
    if len(row) == 1:
        return set()
    names = shape.inputs & row.keys()
    return {*names} if len(names) > 1 or (len(row) > 1 and not row.keys() & {BODY, DATA}) else set()


def _from_fields(names: set[str], row: Mapping[str, object], headers: Headers, shape: Shape) -> Request:
    """Make one item of a form's inputs: files as they are, JSON parsed, and other fields as text or as options are."""
    _check_row(row, headers, shape.max_body_bytes)
    options = {name: value for name, value in row.items() if name not in names}
    check_count(options)
    document = {name: _field_value(name, *_decoded(row, headers, name)) for name in names}
    sent = BodyInfo({name: form_value(value) for name, value in options.items()}, "")
    return shape.items.of_json(document, sent)


def _field_value(name: str, value: object, media_type: str) -> object:
    reader = reader_of(media_type)
    if reader == "json" and isinstance(value, bytes | bytearray | str):
        return parse_json(value)
    is_file = reader in ("form", "other") or isinstance(value, str)
    if is_file or not isinstance(value, bytes | bytearray):
        return value
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return value
    return text if reader == "text" or name in TEXT_INPUTS else form_value(text)


def _input_field(row: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """Return the name of the field that contains the input, and the other fields as options."""
    if BODY in row or DATA in row:
        name = BODY if BODY in row else DATA
    elif len(row) == 1:
        (name,) = row
        if name.startswith("{") or not row[name]:  # `curl -d '{...}'` sends the body as the name of a form's field
            raise InvalidBody("The body is a form without values. For JSON, send Content-Type: application/json.")
    elif row:
        raise InvalidBody(f"The form has {len(row)} fields; name the one with the input {DATA!r}.")
    else:
        raise EmptyInput("The body is empty, or a form without fields. For JSON, send Content-Type: application/json.")
    options = {other: value for other, value in row.items() if other != name}
    if options:
        check_count(options)
    return name, {other: form_value(value) for other, value in options.items()}


def _from_body(value: bytes | bytearray | str, sent: BodyInfo, shape: Shape) -> Request:
    if sent.reader == "json":
        return _from_json(parse_json(value), sent, shape)
    if sent.reader == "form":
        # TorchServe parses forms, except those whose type is in capitals or lacks the boundary.
        raise UnsupportedMedia("The form cannot be parsed: send multipart/form-data, in lower case, with a boundary.")
    if sent.reader in ("unknown", "text") and _is_json(document := _parsed(value), sent, shape):
        return _from_json(document, sent, shape)
    if sent.reader == "other" and shape.media_types == TEXT:
        raise UnsupportedMedia(
            "Content-Type: this model accepts text/plain, application/json, multipart/form-data, "
            "application/x-www-form-urlencoded and application/octet-stream."
        )
    return shape.items.of_body(value, sent)


def _parsed(value: bytes | bytearray | str) -> object:
    """Return the JSON object or list in a body; None for any other body."""
    head = value[:_HEAD] if isinstance(value, str) else value[:_HEAD].decode("utf-8", "ignore")
    try:
        return parse_json(value) if head.lstrip(BOM + " \t\r\n")[:1] in ("{", "[") else None
    except MalformedJson:
        return None


def _is_json(document: Any, sent: BodyInfo, shape: Shape) -> bool:
    """Whether a body is JSON although its client did not state so: no text has the fields of a request by chance."""
    if document is None or is_inference(document):
        return document is not None
    if sent.reader == "text":
        return False
    fields = {*shape.inputs, "instances"}
    if any(
        isinstance(each, dict) and fields & each.keys()
        for each in ([document] if isinstance(document, dict) else document)
    ):
        return True
    # An object of unknown fields is an error, unless it may be a text.
    return isinstance(document, dict) and not (sent.content_type and shape.media_types == TEXT)


def _from_json(document: object, sent: BodyInfo, shape: Shape) -> Request:
    if is_inference(document):
        return _from_inference(document, memoryview(b""), sent.options, shape)
    return shape.items.of_json(document, sent)


def _from_inference(document: object, binary: memoryview, options: Mapping[str, object], shape: Shape) -> Request:
    try:
        return _with_items(open_inference.read_json(document, binary, shape.model), options, shape)
    except InvalidInput as error:
        return Request((ItemError.of(error),), open_inference.Inference(shape.model))


def _from_grpc(body: Any, options: Mapping[str, object], shape: Shape) -> Request:
    # Importing protobuf takes a tenth of a second of a worker's start, for requests that may never arrive.
    from handlers.protocol import grpc_inference  # noqa: PLC0415

    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    message = grpc_inference.parse(body, shape.max_body_bytes) if isinstance(body, bytes | bytearray) else body
    return _with_items(grpc_inference.read(message, shape.model), options, shape)


def _with_items(read: open_inference.InferRequest, options: Mapping[str, object], shape: Shape) -> Request:
    shared = {**options, **read.parameters}
    check_count(shared)
    return Request(shape.items.of_tensors(read.tensors, shared), read.form, terms=read.terms)
