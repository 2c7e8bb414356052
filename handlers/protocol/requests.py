"""Take TorchServe's rows apart into items. Pure: no sockets, no context.

    row (dict from TorchServe), its headers -> unpack -> Request: one payload per item, and the form of the answer
    one result per item -> Request.form.pack -> Reply (status, body and headers of that row; protocol.responses)

A request is one item, or a list of them:

    raw bytes                                   one item; the whole body is its value
    multipart or form, a field `data`           one item; other fields are its options
    {"b64": ..., "top_k": 3}                    one item; names the task calls inputs are its value, others options
    {"instances": [..., ...], "top_k": 3}       items in order; outer options are defaults for each
    {"inputs": [tensor, ...], ...}              Open Inference Protocol: an item for each row of the tensors
    application/x-protobuf                      the same by gRPC (protocol.grpc_inference)
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from handlers.errors import (
    BodyTooLarge,
    EmptyInput,
    InvalidInput,
    InvalidText,
    ItemError,
    MalformedJson,
    TooManyInstances,
    UnknownOption,
    UnknownShape,
    UnsupportedMedia,
    shown,
)
from handlers.protocol import open_inference
from handlers.protocol.allowance import UNLIMITED, Allowance
from handlers.protocol.grpc_status import PROTOBUF, GrpcErrors
from handlers.protocol.responses import Form, Instances, OneItem

# The names under which TorchServe hands over a body and under which its handlers look for an input.
BODY, DATA = "body", "data"

# Where a proxy that rewrites paths, Envoy above all, says what was asked for; it lets no client say so.
ORIGINAL_PATH = "x-envoy-original-path"

# The most options of an item. Those beside "instances" hold for every item of the list, which then has them all.
MOST_OPTIONS = 100

Value = bytes | bytearray | str | Mapping[str, Any] | NDArray[Any]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Request:
    """One row, taken apart.

    Attributes:
        payloads: one per item, in the client's order; an ItemError where the item's shape is wrong.
        form: how the answer is written.
        is_grpc: whether it came by TorchServe's own gRPC.
        terms: what the Open Inference Protocol's parameters ask of the scheduler, unchecked; see `Terms.of`.
        came_s: when the worker read it, in seconds of `time.perf_counter`.
    """

    payloads: tuple[Payload | ItemError, ...]
    form: Form = field(default_factory=OneItem)
    is_grpc: bool = False
    terms: Mapping[str, Any] = field(default_factory=dict)
    came_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What a task accepts.

    Attributes:
        inputs: the names of the fields of a JSON object that are its value.
        max_instances: the most items of one request.
        max_body_bytes: the most bytes of one body, of all fields together where it is a form.
        options: the names of the options of an item.
        item_dimensions: how many dimensions one item has in a tensor of numbers; a tensor of so many holds one item.
        model: what answers in the Open Inference Protocol say of the model.
        tensors: the field of each input by the name of its tensor; nothing where tensors are named like the fields.
    """

    inputs: frozenset[str]
    max_instances: int
    max_body_bytes: int
    options: frozenset[str] = frozenset()
    item_dimensions: int = 0
    model: open_inference.Model = field(default_factory=open_inference.Model)
    tensors: Mapping[str, str] = field(default_factory=dict)


def unpack(row: Mapping[str, Any], headers: Mapping[str, Any], shape: Shape) -> Request:
    """Take one row apart.

    Args:
        row: field name -> value; values are bytes, or JSON or text that is decoded (`decode_input_request=true`).
        headers: the request's, and field name -> {"content-type": as sent}, as TorchServe has them.
        shape: what the task accepts.

    Returns:
        The request. A row that is wrong as a whole becomes one ItemError.
    """
    is_protobuf = _is_protobuf(headers)
    length = None if is_protobuf else _header(headers, open_inference.LENGTH_HEADER)
    try:
        if _header(headers, "Content-Encoding") not in (None, "identity"):
            raise UnsupportedMedia("The body is compressed, as Content-Encoding says; send it as it is.")
        size = sum(len(value) for value in row.values() if isinstance(value, bytes | bytearray | str))
        if size > shape.max_body_bytes:
            raise BodyTooLarge(f"The body has {size} bytes; max_body_bytes is {shape.max_body_bytes}.")
        name, options = _input_field(row)
        value = row[name]
        if not isinstance(value, bytes | bytearray | str):
            return _from_json(value, options, shape)
        if not value:
            raise EmptyInput("The body is empty.")
        if is_protobuf:
            return _from_grpc(value, options, shape)
        if length is not None:
            document, binary = open_inference.split(value, length)
            return _from_inference(_parse_json(document), binary, options, shape)
        return _from_body(value, name, _content_type(headers, name), options, shape)
    except InvalidInput as error:
        return Request((ItemError.of(error),), _error_form(headers, shape.model))


def failed(headers: Mapping[str, Any], error: ItemError) -> Request:
    """Make a request that fails whole, and is answered as its headers let expect."""
    return Request((error,), _error_form(headers, open_inference.Model()))


def _error_form(headers: Mapping[str, Any], model: open_inference.Model) -> Form:
    if _is_protobuf(headers):
        return GrpcErrors()
    is_asked_for = _header(headers, open_inference.LENGTH_HEADER) is not None
    # What no document could be read of: the path that a gateway has rewritten tells which protocol its client speaks.
    is_asked_for |= (_header(headers, ORIGINAL_PATH) or "").startswith("/v2/")
    return open_inference.Inference(model) if is_asked_for else OneItem()


def _is_protobuf(headers: Mapping[str, Any]) -> bool:
    return _content_type(headers, BODY) == PROTOBUF


def _header(headers: Mapping[str, Any], name: str) -> str | None:
    """Find a header of the request under any case: clients have theirs, and TorchServe's depends on the path."""
    values = (headers[key] for key in headers if key.lower() == name.lower())
    return next((value for value in values if isinstance(value, str)), None)


def _content_type(headers: Mapping[str, Any], name: str) -> str:
    """Find the media type of one field, without its parameters; "" where its client named none."""
    header = headers.get(name)
    content_type = header["content-type"] if isinstance(header, Mapping) else ""
    return str(content_type.partition(";")[0].strip().lower())


def _from_body(
    value: bytes | bytearray | str, name: str, content_type: str, options: Mapping[str, Any], shape: Shape
) -> Request:
    if content_type == "application/json":
        return _from_json(_parse_json(value), options, shape)
    # `curl -T request.json` names no type; no image and hardly a text starts like this and is JSON to its end.
    if name == BODY and not content_type and value[:1] in (b"{", "{"):
        try:
            return _from_json(_parse_json(value), options, shape)
        except MalformedJson:
            pass
    return Request((Payload(value, options),))


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
    return name, {other: _form_value(row[other]) for other in row if other != name}


def _form_value(value: Any) -> Any:
    """Read a value of a form, which knows only text: `top_k=3` means the number."""
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else value


def _parse_json(body: bytes | bytearray | memoryview | str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # The error says what was expected and where, and quotes nothing.
        raise MalformedJson(f"The body is not valid JSON: {error}") from None


def _from_json(value: Any, options: Mapping[str, Any], shape: Shape) -> Request:
    if open_inference.is_inference(value):
        return _from_inference(value, memoryview(b""), options, shape)
    if not isinstance(value, dict) or "instances" not in value:
        return Request((_payload(value, options, shape),))
    shared = {**options, **{name: option for name, option in value.items() if name != "instances"}}
    _check_count(shared)
    instances = value["instances"]
    if not isinstance(instances, list):
        raise UnknownShape('"instances" must be a list.')
    if not instances:
        raise EmptyInput('"instances" is empty.')
    if len(instances) > shape.max_instances:
        raise TooManyInstances(f"{len(instances)} instances; max_instances is {shape.max_instances}.")
    return Request(tuple(_instance(instance, shared, shape) for instance in instances), Instances())


def _instance(value: Any, shared: Mapping[str, Any], shape: Shape) -> Payload | ItemError:
    try:
        return _payload(value, shared, shape)
    except InvalidInput as error:
        return ItemError.of(error)


def _check_count(options: Mapping[str, Any]) -> None:
    if len(options) > MOST_OPTIONS:
        raise UnknownOption(f"{len(options)} options; at most {MOST_OPTIONS} are taken.")


def _payload(value: Any, shared: Mapping[str, Any], shape: Shape) -> Payload:
    if isinstance(value, str):
        return Payload(value, shared)
    if not isinstance(value, dict) or not shape.inputs & value.keys():
        fields = ", ".join(f'"{name}": ...' for name in sorted(shape.inputs))
        raise UnknownShape(f'JSON must be {{{fields}}} or {{"instances": [{{{fields}}}, ...]}}.')
    inputs = {name: value[name] for name in value if name in shape.inputs}
    own = {name: value[name] for name in value if name not in shape.inputs}
    return Payload(inputs, {**shared, **own})


def _from_inference(document: Any, binary: memoryview, options: Mapping[str, Any], shape: Shape) -> Request:
    try:
        inquiry = open_inference.read(document, binary, shape.model)
        return _asked(inquiry, inquiry.form, options, shape)
    except InvalidInput as error:
        return Request((ItemError.of(error),), open_inference.Inference(shape.model))


def _from_grpc(body: bytes | bytearray | str, options: Mapping[str, Any], shape: Shape) -> Request:
    # protobuf is a tenth of a second of a worker's start, for requests that may never come.
    from handlers.protocol import grpc_inference  # noqa: PLC0415

    message = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    inquiry, form = grpc_inference.read(message, shape.model, shape.max_body_bytes)
    return _asked(inquiry, form, options, shape)


def _asked(inquiry: open_inference.Inquiry, form: Form, options: Mapping[str, Any], shape: Shape) -> Request:
    shared = {**options, **inquiry.parameters}
    _check_count(shared)
    return Request(_tensor_items(inquiry.tensors, shared, shape), form, terms=inquiry.terms)


def _tensor_items(
    tensors: Mapping[str, NDArray[Any]], shared: Mapping[str, Any], shape: Shape
) -> tuple[Payload | ItemError, ...]:
    """Make item i of row i of every tensor."""
    inputs = _tensor_inputs(tensors, shape)
    columns = {
        name: _column(name, array, shape.item_dimensions if name in inputs and array.dtype.kind != "O" else 0)
        for name, array in tensors.items()
    }
    sizes = sorted({len(column) for column in columns.values()})
    if len(sizes) > 1:
        raise UnknownShape(f"The tensors must have the same first dimension, not {', '.join(map(str, sizes[:5]))}.")
    (size,) = sizes
    if not size:
        raise EmptyInput("The tensors are empty.")
    if size > shape.max_instances:
        raise TooManyInstances(f"The tensors hold {size} items; max_instances is {shape.max_instances}.")
    values = {input_name: list(columns[name]) for name, input_name in inputs.items()}
    own = {name: columns[name].tolist() for name in columns if name not in inputs}
    return tuple(_tensor_item(_row(values, index), _row(own, index), shared, shape) for index in range(size))


def _tensor_inputs(names: Iterable[str], shape: Shape) -> Mapping[str, str]:
    """Map names of tensors to the inputs they are; where a task has one input, clients call it what they like."""
    fields = shape.tensors or {name: name for name in shape.inputs}
    named = {name: fields[name] for name in names if name in fields}
    if named:
        return named
    others = [name for name in names if name not in shape.options]
    if len(shape.inputs) == len(others) == 1:
        return dict(zip(others, shape.inputs, strict=True))
    known = ", ".join(sorted(shape.options)) or "none"
    if len(shape.inputs) > 1:
        raise UnknownShape(f"The inputs must be named {', '.join(sorted(fields))}; options: {known}.")
    raise UnknownShape(f"{len(others)} tensors are no options; one must be the input. Options: {known}.")


def _column(name: str, array: NDArray[Any], dimensions: int) -> NDArray[Any]:
    """Shape an array so that its rows are items of so many dimensions: (B, ...), or (B,) where they have none."""
    if array.ndim == dimensions:
        return array[np.newaxis]
    if dimensions == 0 and array.size == len(array):
        return array.reshape(len(array))
    if dimensions == 0 or array.ndim != dimensions + 1:
        expected = ", ".join(["B", *(["..."] if dimensions else ["1"]) * max(dimensions, 1)])
        raise UnknownShape(f"{shown(name)}: the shape is {list(array.shape)}; [{expected}] is needed.")
    return array


def _row(columns: Mapping[str, Sequence[Any]], index: int) -> dict[str, Any]:
    return {name: column[index] for name, column in columns.items()}


def _tensor_item(
    values: Mapping[str, Any], own: Mapping[str, Any], shared: Mapping[str, Any], shape: Shape
) -> Payload | ItemError:
    """Make one item: text from JSON means what the field of a JSON object does, bytes and pixels what a raw body is."""
    try:
        options = {**shared, **{name: _option(name, value) for name, value in own.items()}}
    except InvalidInput as error:
        return ItemError.of(error)
    if len(shape.inputs) == 1:
        (value,) = values.values()
        if not isinstance(value, str):
            return Payload(value, options)
    return Payload(values, options)


def _option(name: str, value: Any) -> Any:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise InvalidText(f"{shown(name)}: not valid UTF-8 at byte {error.start}.") from None
