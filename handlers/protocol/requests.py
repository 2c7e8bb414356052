"""Take TorchServe's rows apart into items. Pure: no sockets, no context.

    row (dict from TorchServe), its headers -> unpack -> Request: one payload per item, and the form of the answer
    one result per item -> Request.form.pack -> Reply (status, body and headers of that row; protocol.responses)

The media type selects the reader of a body (bodies.READERS); the task makes items of its contents (Items):

    raw bytes, text                             Items.of_body
    multipart or form, a field `data`           its own media type decides; other fields are options
    JSON                                        Items.of_json
    no type, or application/octet-stream        JSON if it parses as an object or list with fields of the task
    POST /v2/models/M/infer through a gateway   JSON, whatever the type
    {"inputs": [tensor, ...], ...}              Open Inference Protocol: tensors, Items.of_tensors
    application/x-protobuf                      the same by gRPC (protocol.grpc_inference)

`protocol.fields` has the items of most tasks, `tensor_models` those of a model of tensors.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from handlers.errors import (
    InvalidInput,
    ItemError,
    MalformedJson,
    UnsupportedMedia,
    WorkTooLarge,
)
from handlers.protocol import open_inference
from handlers.protocol.bodies import BODY, BOM, BodyInfo, body_of, check_count, parse_json
from handlers.protocol.headers import content_type, header
from handlers.protocol.output_tensors import Model
from handlers.protocol.responses import PROTOBUF, Form, GrpcErrors, OneItem

# A proxy that rewrites paths, as Envoy does, sends the original one in this header; clients cannot.
ORIGINAL_PATH = "x-envoy-original-path"
# The media types of a task that takes texts alone.
TEXT = ("text/plain",)
# Characters of a body in which JSON begins; white space may stand before it.
_HEAD = 64

Value = bytes | bytearray | str | Mapping[str, Any] | NDArray[Any]


class Allowance:
    """What the items of one request may ask for together: each takes what it needs before work is spent on it."""

    def __init__(self) -> None:
        """Start with nothing taken."""
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, unit: str, amount: int, limit: int) -> None:
        """Take a part of what the request has; any thread may.

        What is refused stays counted, so that it does not matter which item asks first.

        Args:
            unit: of what: "pixels", "characters".
            amount: how many this item has.
            limit: how many all items may have, the setting `max_request_<unit>`.

        Raises:
            WorkTooLarge: there is not so much left.
        """
        with self._lock:
            self._taken[unit] += amount
            is_over = self._taken[unit] > limit
        if is_over:
            raise WorkTooLarge(f"The items of the request have more {unit} together than max_request_{unit}, {limit}.")


class _Unlimited(Allowance):
    """That of an item which is alone in its request: only the limits of an item hold."""

    def take(self, unit: str, amount: int, limit: int) -> None:
        """Refuse nothing."""


UNLIMITED = _Unlimited()


@dataclass(slots=True)
class Payload:
    """One item as its client sent it.

    Attributes:
        value: the raw body, what a tensor holds for this item, or the input fields of a JSON object.
        options: everything that is not input; it is not checked yet.
        allowance: what the items of its request may ask for together; `decode` takes from it before it spends work.
    """

    value: Value
    options: Mapping[str, Any] = field(default_factory=dict)
    allowance: Allowance = field(default=UNLIMITED, compare=False, repr=False)


@dataclass(slots=True)
class Request:
    """One row, taken apart.

    Attributes:
        payloads: one per item, in the client's order; an ItemError where the item's shape is wrong.
        form: how the answer is written.
        is_grpc: whether it came by TorchServe's own gRPC.
        terms: the Open Inference Protocol's parameters for the scheduler, unchecked; see `Terms.of`.
        came_s: when the worker began to unpack it, in seconds of `time.perf_counter`.
    """

    payloads: tuple[Payload | ItemError, ...]
    form: Form = field(default_factory=OneItem)
    is_grpc: bool = False
    terms: Mapping[str, Any] = field(default_factory=dict)
    came_s: float = 0.0


class Items(Protocol):
    """How what a request holds becomes items. Each method raises InvalidInput where the request is wrong as a whole."""

    def of_body(self, body: bytes | bytearray | str, sent: BodyInfo) -> Request:
        """Read a body that is no JSON, at least one byte."""

    def of_json(self, document: Any, sent: BodyInfo) -> Request:
        """Read parsed JSON, which is no Open Inference request."""

    def of_tensors(
        self, tensors: Mapping[str, NDArray[Any]], options: Mapping[str, Any]
    ) -> tuple[Payload | ItemError, ...]:
        """Make items of the tensors of an Open Inference request, by name; numbers of BF16 have the dtype BF16."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a task accepts."""

    items: Items
    max_body_bytes: int  # of all fields together, if it is a form
    model: Model = field(default_factory=Model)
    inputs: frozenset[str] = frozenset()
    max_instances: int = 1
    api: str | None = None  # that of handlers.protocol.retrieval
    media_types: tuple[str, ...] = ()  # of bodies other than JSON and forms; see `Hooks`


def unpack(row: Mapping[str, Any], headers: Mapping[str, Any], shape: Shape) -> Request:
    """Take one row apart."""
    is_protobuf = _is_protobuf(headers)
    length = None if is_protobuf else header(headers, open_inference.LENGTH_HEADER)
    try:
        _, value, sent = body_of(row, headers, shape.max_body_bytes)
        if not isinstance(value, bytes | bytearray | str):
            return _from_json(value, sent, shape)
        if is_protobuf:
            return _from_grpc(value, sent.options, shape)
        if length is not None:
            document, binary = open_inference.split(value, length)
            return _from_inference(parse_json(document), binary, sent.options, shape)
        if _is_inference_path(headers):
            return _from_inference(parse_json(value), memoryview(b""), sent.options, shape)
        return _from_body(value, sent, shape)
    except InvalidInput as error:
        return Request((ItemError.of(error),), _error_form(headers, shape.model))


def failed(headers: Mapping[str, Any], error: ItemError) -> Request:
    """Return a request that fails as a whole, with an answer in the form that its headers imply."""
    return Request((error,), _error_form(headers, Model()))


def _error_form(headers: Mapping[str, Any], model: Model) -> Form:
    if _is_protobuf(headers):
        return GrpcErrors()
    is_inference = header(headers, open_inference.LENGTH_HEADER) is not None or _is_inference_path(headers)
    return open_inference.Inference(model) if is_inference else OneItem()


def _is_inference_path(headers: Mapping[str, Any]) -> bool:
    """Whether the path that a gateway has rewritten was the Open Inference Protocol's."""
    return (header(headers, ORIGINAL_PATH) or "").startswith("/v2/models/")


def _is_protobuf(headers: Mapping[str, Any]) -> bool:
    return content_type(headers, BODY)[0] == PROTOBUF


def _from_body(value: bytes | bytearray | str, sent: BodyInfo, shape: Shape) -> Request:
    if sent.reader == "json":
        return _from_json(parse_json(value), sent, shape)
    if sent.reader == "form":
        # TorchServe parses a form, unless its type is in capitals or lacks the boundary.
        raise UnsupportedMedia("The form cannot be parsed: send multipart/form-data, in lower case, with a boundary.")
    if sent.reader in ("unknown", "text") and _is_json(document := _parsed(value), sent, shape):
        return _from_json(document, sent, shape)
    if sent.reader == "other" and shape.media_types == TEXT:
        raise UnsupportedMedia(
            "Content-Type: this model accepts text/plain, application/json, multipart/form-data, "
            "application/x-www-form-urlencoded and application/octet-stream."
        )
    return shape.items.of_body(value, sent)


def _parsed(value: bytes | bytearray | str) -> Any:
    """Return the JSON object or list that a body contains; None for any other body."""
    head = value[:_HEAD] if isinstance(value, str) else value[:_HEAD].decode("utf-8", "ignore")
    try:
        return parse_json(value) if head.lstrip(BOM + " \t\r\n")[:1] in ("{", "[") else None
    except MalformedJson:
        return None


def _is_json(document: Any, sent: BodyInfo, shape: Shape) -> bool:
    """Whether a client that did not state JSON sent it: no text has the fields of a request by chance."""
    if document is None or open_inference.is_inference(document):
        return document is not None
    if sent.reader == "text":
        return False
    fields = {*shape.inputs, "instances"}
    if any(
        isinstance(each, dict) and fields & each.keys()
        for each in ([document] if isinstance(document, dict) else document)
    ):
        return True
    # An object of unknown fields is an error, except as a text.
    return isinstance(document, dict) and not (sent.content_type and shape.media_types == TEXT)


def _from_json(document: Any, sent: BodyInfo, shape: Shape) -> Request:
    if open_inference.is_inference(document):
        return _from_inference(document, memoryview(b""), sent.options, shape)
    return shape.items.of_json(document, sent)


def _from_inference(document: Any, binary: memoryview, options: Mapping[str, Any], shape: Shape) -> Request:
    try:
        return _with_items(open_inference.read_json(document, binary, shape.model), options, shape)
    except InvalidInput as error:
        return Request((ItemError.of(error),), open_inference.Inference(shape.model))


def _from_grpc(body: bytes | bytearray | str, options: Mapping[str, Any], shape: Shape) -> Request:
    # protobuf is a tenth of a second of a worker's start, for requests that may never come.
    from handlers.protocol import grpc_inference  # noqa: PLC0415

    message = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return _with_items(grpc_inference.read(message, shape.model, shape.max_body_bytes), options, shape)


def _with_items(read: open_inference.InferRequest, options: Mapping[str, Any], shape: Shape) -> Request:
    shared = {**options, **read.parameters}
    check_count(shared)
    return Request(shape.items.of_tensors(read.tensors, shared), read.form, terms=read.terms)
