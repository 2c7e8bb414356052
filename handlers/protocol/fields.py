"""Items of the tasks whose inputs are named fields: a text, an image, a question with its context. Pure.

raw bytes                                   one item; the whole body is its value
{"b64": ..., "top_k": 3}                    one item; the task's inputs are its value, other fields are options
{"instances": [..., ...], "top_k": 3}       items in order; outer options are defaults for each
{"inputs": ..., "parameters": {...}}        an item, or a list of them, as servers of Hugging Face and SageMaker read it
tensors of the Open Inference Protocol      one item for each row
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from handlers.aliases import Array
from handlers.errors import EmptyInput, InvalidBody, InvalidInput, InvalidText, ItemError, TooManyInstances, show_name
from handlers.protocol.bodies import BodyInfo, check_count
from handlers.protocol.requests import Payload, Payloads, Request
from handlers.protocol.responses import Form, Instances, Piped, PipelineForm
from handlers.protocol.tensors import BF16, from_bfloat16

# transformers' and TEI's names of options.
PIPELINE = {
    "aggregation_strategy": "aggregation",
    "max_answer_len": "max_answer_tokens",
    "stride": "doc_stride",
    "truncate": "truncation",
    "truncation_direction": "truncation_side",
}

IMAGE = frozenset({"b64"})  # the input of tasks on images, whose text in JSON is base64


def instances_of(
    document: Mapping[str, object],
    options: Mapping[str, object],
    most: int,
    read: Callable[[object, Mapping[str, object]], Payload],
    form: Form,
) -> Request:
    """Read {"instances": [...]}; a wrong instance is an item's error."""
    shared = {**options, **{name: value for name, value in document.items() if name != "instances"}}
    check_count(shared)
    instances = document["instances"]
    if not isinstance(instances, list):
        raise InvalidBody('"instances" must be a list.')
    if not instances:
        raise EmptyInput('"instances" is empty.')
    if len(instances) > most:
        raise TooManyInstances(f"{len(instances)} instances; max_request_items is {most}.")

    def outcome(instance: object) -> Payload | ItemError:
        try:
            return read(instance, shared)
        except InvalidInput as error:
            return ItemError.of(error)

    return Request(tuple(map(outcome, instances)), form)


@dataclass(frozen=True, slots=True)
class Fields:
    """Makes items of named fields; see `handlers.protocol.requests.Items`."""

    inputs: frozenset[str]  # the fields of a JSON object that are its value
    max_request_items: int
    options: frozenset[str] = frozenset()  # the options of an item
    item_dimensions: int = 0  # of one item in a tensor of numbers; a tensor with this number of dimensions is one item
    tensors: Mapping[str, str] = field(default_factory=dict)  # tensor -> input; empty if the names are equal
    piped: Piped = field(default_factory=Piped)

    def of_body(self, body: bytes | bytearray | str, sent: BodyInfo) -> Request:
        # If a task has other inputs besides texts, the media type decides whether a body is a text.
        is_text = len(self.inputs) > 1 and "text" in self.inputs and sent.reader == "text"
        value = {"text": body} if is_text else body
        if sent.is_piped:
            return Request((Payload(value, {**self.piped.options, **sent.options}),), PipelineForm("", self.piped))
        return Request((Payload(value, sent.options),))

    def of_json(self, document: object, sent: BodyInfo) -> Request:
        if isinstance(document, dict) and "instances" in document:
            return instances_of(document, sent.options, self.max_request_items, self._payload, Instances())
        is_own = "inputs" in self.inputs
        if isinstance(document, dict) and isinstance(document.get("inputs"), str | dict | list) and not is_own:
            return self._of_pipeline(document, sent.options)
        return Request((self._payload(document, sent.options),))

    def _of_pipeline(self, document: Mapping[str, object], options: Mapping[str, object]) -> Request:
        others = {name: value for name, value in document.items() if name not in ("inputs", "parameters", "options")}
        if not isinstance(parameters := document.get("parameters") or {}, dict):
            raise InvalidBody('"parameters" must be an object.')
        generation = parameters.get("generate_parameters")
        if isinstance(generation, dict):
            parameters = {**parameters, **generation}
            del parameters["generate_parameters"]
        named = {**options, **others, **parameters}
        shared = {**self.piped.options, **{PIPELINE.get(name, name): value for name, value in named.items()}}
        inputs = document["inputs"]
        items = {"instances": inputs if isinstance(inputs, list) else [inputs]}
        form = PipelineForm(inputs, self.piped)
        return instances_of(items, shared, self.max_request_items, self._payload, form)

    def _payload(self, value: object, shared: Mapping[str, object]) -> Payload:
        if isinstance(value, str):
            return Payload({"b64": value} if self.inputs == IMAGE else value, shared)
        if not isinstance(value, dict) or not self.inputs & value.keys():
            fields = ", ".join(f'"{name}": ...' for name in sorted(self.inputs))
            raise InvalidBody(f'JSON must be {{{fields}}} or {{"instances": [{{{fields}}}, ...]}}.')
        inputs = {name: value[name] for name in value if name in self.inputs}
        own = {name: value[name] for name in value if name not in self.inputs}
        return Payload(inputs, {**shared, **own})

    def of_tensors(self, tensors: Mapping[str, Array], options: Mapping[str, object]) -> Payloads:
        inputs = self._inputs_of(tensors)
        columns = {
            name: _column(name, array, self.item_dimensions if name in inputs and array.dtype.kind != "O" else 0)
            for name, array in tensors.items()
        }
        sizes = sorted({len(column) for column in columns.values()})
        if len(sizes) > 1:
            raise InvalidBody(f"The tensors must have the same first dimension, not {', '.join(map(str, sizes[:5]))}.")
        (size,) = sizes
        if not size:
            raise EmptyInput("The tensors are empty.")
        if size > self.max_request_items:
            raise TooManyInstances(f"The tensors contain {size} items; max_request_items is {self.max_request_items}.")
        values = {input_name: list(columns[name]) for name, input_name in inputs.items()}
        own = {name: columns[name].tolist() for name in columns if name not in inputs}
        return tuple(self._item(values, own, index, options) for index in range(size))

    def _inputs_of(self, names: Iterable[str]) -> Mapping[str, str]:
        """Map names of tensors to inputs; if a task has one input, its tensor may have any name."""
        fields = self.tensors or {name: name for name in self.inputs}
        named = {name: fields[name] for name in names if name in fields}
        if named:
            return named
        others = [name for name in names if name not in self.options]
        if len(self.inputs) == len(others) == 1:
            return dict(zip(others, self.inputs, strict=True))
        known = ", ".join(sorted(self.options)) or "none"
        if len(self.inputs) > 1:
            raise InvalidBody(f"The inputs must be named {', '.join(sorted(fields))}; options: {known}.")
        raise InvalidBody(f"{len(others)} tensors are not options; exactly one must be the input. Options: {known}.")

    def _item(
        self, values: Mapping[str, Any], own: Mapping[str, Any], index: int, shared: Mapping[str, Any]
    ) -> Payload | ItemError:
        """Make an item of one row. Text from JSON becomes a field of an object; bytes and pixels become a raw body."""
        options = dict(shared)
        for name, column in own.items():
            try:
                options[name] = column[index].decode() if isinstance(column[index], bytes) else column[index]
            except UnicodeDecodeError as error:
                return ItemError.of(InvalidText(f"{show_name(name)}: not valid UTF-8 at byte {error.start}."))
        row = {name: column[index] for name, column in values.items()}
        if len(self.inputs) == 1:
            (value,) = row.values()
            return Payload(row if isinstance(value, str) else value, options)
        return Payload(row, options)


def _column(name: str, array: Array, dimensions: int) -> Array:
    """Return an array whose rows are items of `dimensions` dimensions: (B, ...), or (B,) for none."""
    if array.dtype == BF16:
        array = from_bfloat16(array)
    if array.ndim == dimensions:
        return array[np.newaxis]
    if dimensions == 0 and array.size == len(array):
        return array.reshape(len(array))
    if dimensions == 0 or array.ndim != dimensions + 1:
        expected = ", ".join(["B", *(["..."] if dimensions else ["1"]) * max(dimensions, 1)])
        raise InvalidBody(f"{show_name(name)}: the shape must be [{expected}], not {list(array.shape)}.")
    return array
