"""Items of the tasks whose inputs are named fields: a text, an image, a question with its context. Pure.

raw bytes                                   one item; the whole body is its value
{"b64": ..., "top_k": 3}                    one item; names the task calls inputs are its value, others options
{"instances": [..., ...], "top_k": 3}       items in order; outer options are defaults for each
tensors of the Open Inference Protocol      an item for each row of theirs
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import (
    EmptyInput,
    InvalidInput,
    InvalidText,
    ItemError,
    TooManyInstances,
    UnknownShape,
    shown,
)
from handlers.protocol.requests import BodyInfo, Payload, Request, check_count
from handlers.protocol.responses import Instances
from handlers.protocol.tensors import BF16, from_bfloat16


def instances_of(document: Mapping[str, Any], most: int, read: Callable[[Any], Payload]) -> Request:
    """Read {"instances": [...]}; an instance that is wrong is an item's error.

    Args:
        document: has "instances".
        most: how many there may be.
        read: makes an item of an instance; it may raise InvalidInput.

    Raises:
        UnknownShape, EmptyInput, TooManyInstances: the list is none, empty or too long.
    """
    instances = document["instances"]
    if not isinstance(instances, list):
        raise UnknownShape('"instances" must be a list.')
    if not instances:
        raise EmptyInput('"instances" is empty.')
    if len(instances) > most:
        raise TooManyInstances(f"{len(instances)} instances; max_instances is {most}.")
    return Request(tuple(_outcome(read, instance) for instance in instances), Instances())


def _outcome(read: Callable[[Any], Payload], instance: Any) -> Payload | ItemError:
    try:
        return read(instance)
    except InvalidInput as error:
        return ItemError.of(error)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a task's items; see `handlers.protocol.requests.Items`.

    Attributes:
        inputs: the names of the fields of a JSON object that are its value.
        max_instances: the most items of one request.
        options: the names of the options of an item.
        item_dimensions: how many dimensions one item has in a tensor of numbers; a tensor of so many holds one item.
        tensors: the field of each input by the name of its tensor; nothing where tensors are named like the fields.
    """

    inputs: frozenset[str]
    max_instances: int
    options: frozenset[str] = frozenset()
    item_dimensions: int = 0
    tensors: Mapping[str, str] = field(default_factory=dict)

    def of_body(self, body: bytes | bytearray | str, sent: BodyInfo) -> Request:
        """See `Items`."""
        return Request((Payload(body, sent.options),))

    def of_json(self, document: Any, sent: BodyInfo) -> Request:
        """See `Items`."""
        if not isinstance(document, dict) or "instances" not in document:
            return Request((_payload(document, sent.options, self),))
        shared = {**sent.options, **{name: option for name, option in document.items() if name != "instances"}}
        check_count(shared)
        return instances_of(document, self.max_instances, lambda instance: _payload(instance, shared, self))

    def of_tensors(
        self, tensors: Mapping[str, NDArray[Any]], options: Mapping[str, Any]
    ) -> tuple[Payload | ItemError, ...]:
        """See `Items`; item i is row i of every tensor."""
        inputs = _tensor_inputs(tensors, self)
        columns = {
            name: _column(name, array, self.item_dimensions if name in inputs and array.dtype.kind != "O" else 0)
            for name, array in tensors.items()
        }
        sizes = sorted({len(column) for column in columns.values()})
        if len(sizes) > 1:
            raise UnknownShape(f"The tensors must have the same first dimension, not {', '.join(map(str, sizes[:5]))}.")
        (size,) = sizes
        if not size:
            raise EmptyInput("The tensors are empty.")
        if size > self.max_instances:
            raise TooManyInstances(f"The tensors hold {size} items; max_instances is {self.max_instances}.")
        values = {input_name: list(columns[name]) for name, input_name in inputs.items()}
        own = {name: columns[name].tolist() for name in columns if name not in inputs}
        return tuple(_tensor_item(_row(values, index), _row(own, index), options, self) for index in range(size))


def _payload(value: Any, shared: Mapping[str, Any], task: Fields) -> Payload:
    if isinstance(value, str):
        return Payload(value, shared)
    if not isinstance(value, dict) or not task.inputs & value.keys():
        fields = ", ".join(f'"{name}": ...' for name in sorted(task.inputs))
        raise UnknownShape(f'JSON must be {{{fields}}} or {{"instances": [{{{fields}}}, ...]}}.')
    inputs = {name: value[name] for name in value if name in task.inputs}
    own = {name: value[name] for name in value if name not in task.inputs}
    return Payload(inputs, {**shared, **own})


def _tensor_inputs(names: Iterable[str], task: Fields) -> Mapping[str, str]:
    """Map names of tensors to the inputs they are; where a task has one input, clients call it what they like."""
    fields = task.tensors or {name: name for name in task.inputs}
    named = {name: fields[name] for name in names if name in fields}
    if named:
        return named
    others = [name for name in names if name not in task.options]
    if len(task.inputs) == len(others) == 1:
        return dict(zip(others, task.inputs, strict=True))
    known = ", ".join(sorted(task.options)) or "none"
    if len(task.inputs) > 1:
        raise UnknownShape(f"The inputs must be named {', '.join(sorted(fields))}; options: {known}.")
    raise UnknownShape(f"{len(others)} tensors are no options; one must be the input. Options: {known}.")


def _column(name: str, array: NDArray[Any], dimensions: int) -> NDArray[Any]:
    """Shape an array so that its rows are items of so many dimensions: (B, ...), or (B,) where they have none."""
    if array.dtype == BF16:
        array = from_bfloat16(array)
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
    values: Mapping[str, Any], own: Mapping[str, Any], shared: Mapping[str, Any], task: Fields
) -> Payload | ItemError:
    """Make one item: text from JSON means what the field of a JSON object does, bytes and pixels what a raw body is."""
    try:
        options = {**shared, **{name: _option(name, value) for name, value in own.items()}}
    except InvalidInput as error:
        return ItemError.of(error)
    if len(task.inputs) == 1:
        (value,) = values.values()
        if not isinstance(value, str):
            return Payload(value, options)
    return Payload(values, options)


def _option(name: str, value: Any) -> Any:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise InvalidText(f"{shown(name)}: not valid UTF-8 at byte {error.start}.") from None
