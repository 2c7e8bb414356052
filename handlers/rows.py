"""TorchServe rows <-> items. Pure: no sockets, no context, no tensors.

    row (dict from TorchServe) -> unpack -> Request with one payload per item
    Request + one result per item -> pack -> Reply (status and body of that row)

A request is one item, or a list of them:

    raw bytes                                   one item; the whole body is its value
    multipart or form, a field `data`           one item; other fields are its options
    {"b64": ..., "top_k": 3}                    one item; names the task calls inputs are its value, others options
    {"instances": [..., ...], "top_k": 3}       items in order; outer options are defaults for each
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from handlers.errors import (
    BodyTooLarge,
    EmptyInput,
    InvalidInput,
    ItemError,
    MalformedJson,
    TooManyInstances,
    UnknownShape,
)

# The names under which TorchServe hands over a body and under which its handlers look for an input.
BODY, DATA = "body", "data"

Value = bytes | bytearray | str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Payload:
    """One item as its client sent it.

    Attributes:
        value: the raw body, or the input fields of a JSON object.
        options: everything that is not input, unchecked.
    """

    value: Value
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One row, taken apart.

    Attributes:
        payloads: one per item, in the client's order; an ItemError where the item's shape is wrong.
        is_list: the client sent {"instances": [...]} and gets {"predictions": [...]}.
    """

    payloads: tuple[Payload | ItemError, ...]
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """One row's answer."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """What a task accepts.

    Attributes:
        inputs: names of the fields of a JSON object that are its value.
        max_instances: most items of one request.
        max_body_bytes: most bytes of one body.
    """

    inputs: frozenset[str]
    max_instances: int
    max_body_bytes: int


def unpack(row: Mapping[str, Any], content_types: Mapping[str, str], shape: Shape) -> Request:
    """Take one row apart.

    Args:
        row: field name -> value: bytes, or already decoded JSON or text (`decode_input_request=true`).
        content_types: field name -> content type as sent; a field without one is absent.
        shape: what the task accepts.

    Returns:
        The request. A row that is wrong as a whole is one ItemError.
    """
    try:
        return _unpack(row, content_types, shape)
    except InvalidInput as error:
        return Request((ItemError.of(error),))


def _unpack(row: Mapping[str, Any], content_types: Mapping[str, str], shape: Shape) -> Request:
    name, options = _input_field(row)
    value = row[name]
    if not isinstance(value, bytes | bytearray | str):
        return _from_json(value, options, shape)
    if len(value) > shape.max_body_bytes:
        raise BodyTooLarge(f"The body has {len(value)} bytes; max_body_bytes is {shape.max_body_bytes}.")
    if not value:
        raise EmptyInput("The body is empty.")
    content_type = content_types.get(name, "")
    if content_type.partition(";")[0].strip().lower() == "application/json":
        return _from_json(_parse_json(value), options, shape)
    # `curl -T request.json` names no type; no image and hardly a text starts like this and is JSON to its end.
    if name == BODY and not content_type and value[:1] in (b"{", "{"):
        try:
            return _from_json(_parse_json(value), options, shape)
        except MalformedJson:
            pass
    return Request((Payload(value, options),))


def _input_field(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The field that carries the input, and the others as options."""
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
    """A form knows only text: `top_k=3` means the number."""
    try:
        return json.loads(value)
    except (ValueError, TypeError):
        return value if isinstance(value, str) else None


def _parse_json(body: bytes | bytearray | str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # It says what was expected and where, and quotes nothing.
        raise MalformedJson(f"The body is not valid JSON: {error}") from None


def _from_json(value: Any, options: Mapping[str, Any], shape: Shape) -> Request:
    if not isinstance(value, dict) or "instances" not in value:
        return Request((_payload(value, options, shape),))
    shared = {**options, **{name: option for name, option in value.items() if name != "instances"}}
    instances = value["instances"]
    if not isinstance(instances, list):
        raise UnknownShape('"instances" must be a list.')
    if not instances:
        raise EmptyInput('"instances" is empty.')
    if len(instances) > shape.max_instances:
        raise TooManyInstances(f"{len(instances)} instances; max_instances is {shape.max_instances}.")
    return Request(tuple(_instance(instance, shared, shape) for instance in instances), is_list=True)


def _instance(value: Any, shared: Mapping[str, Any], shape: Shape) -> Payload | ItemError:
    try:
        return _payload(value, shared, shape)
    except InvalidInput as error:
        return ItemError.of(error)


def _payload(value: Any, shared: Mapping[str, Any], shape: Shape) -> Payload:
    if isinstance(value, str):
        return Payload(value, shared)
    if not isinstance(value, dict) or not shape.inputs & value.keys():
        fields = ", ".join(f'"{name}": ...' for name in sorted(shape.inputs))
        raise UnknownShape(f'JSON must be {{{fields}}} or {{"instances": [{{{fields}}}, ...]}}.')
    inputs = {name: value[name] for name in value if name in shape.inputs}
    own = {name: value[name] for name in value if name not in shape.inputs}
    return Payload(inputs, {**shared, **own})


def pack(request: Request, results: Sequence[Any]) -> Reply:
    """Put one row's answer together.

    Args:
        request: what `unpack` made of the row.
        results: one per payload, in order: an ItemError, or a value that JSON can hold.

    Returns:
        A list answers 200 when at least one item has a result, its errors standing in their places as
        {"error": {...}}; otherwise the status of its first error.
    """
    if not request.is_list:
        (result,) = results
        if isinstance(result, ItemError):
            return Reply(result.code, encode(result.to_json()))
        return Reply(200, encode(result))
    predictions = [{"error": r.to_json()} if isinstance(r, ItemError) else r for r in results]
    first, *_ = results
    is_failed = all(isinstance(result, ItemError) for result in results)
    return Reply(first.code if is_failed else 200, encode({"predictions": predictions}))


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON, arrays included; TorchServe itself would indent it.

    Raises:
        ValueError: a number that JSON does not have, such as NaN.
        TypeError: something that JSON does not have.
    """
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in body:
        # Where orjson found no number it wrote null; the slower encoder tells that from what is null or says so.
        json.dumps(value, allow_nan=False, default=np.ndarray.tolist)
    return body
