"""What a model of tensors takes and gives, as OpenAPI has it: rows, columns, tensors of the protocol, files. Pure.

metadata: inputs  -> bodies  -> media type -> schema, with examples where a row is short
          outputs -> answers -> media type -> schema
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any

from deploy.gateway.openapi_schemas import JSON, Schema, list_of, object_of, ref

TASK = "tensors"

# A free dimension has so many places in an example, and an example has no more elements than this in all.
FREE_SIZE, MOST_ELEMENTS = 4, 256
ARRAYS: Mapping[str, str] = {
    "application/x-npy": "The only input, as numpy.save writes it.",
    "application/x-npz": "All inputs by name, as numpy.savez and savez_compressed write them.",
}
# Words of a datatype's name -> JSON's own type, and an example of the element with this number.
KINDS: Sequence[tuple[str, str, Callable[[int], Any]]] = (
    ("BOOL", "boolean", lambda index: index % 2 == 0),
    ("BYTES", "string", lambda index: f"text {index}"),
    ("INT", "integer", lambda index: index % 2),
    ("FP", "number", lambda index: index % 10 / 10),
    ("BF", "number", lambda index: index % 10 / 10),
    ("ANY", "", lambda index: index % 10 / 10),
)

Tensor = Mapping[str, Any]


def bodies(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what requests may hold."""
    inputs = list(metadata["inputs"])
    row = _named(inputs, _row)
    row.pop("required")  # a mask may be left out, and metadata does not say which inputs are masks
    row |= {"additionalProperties": False, "minProperties": 1}
    instance = {"anyOf": [row, _row(inputs[0])]} if len(inputs) == 1 else row
    instances: Schema = {**list_of(instance), "minItems": 1}
    if isinstance(most := metadata.get("max_instances"), int):
        instances["maxItems"] = most
    columns = {**row, "properties": {tensor["name"]: _whole(tensor) for tensor in inputs}}
    forms = [row, object_of({"instances": instances}), object_of({"inputs": columns}), ref("InferRequest")]
    examples = _examples(inputs)
    files = {kind: {"schema": {"description": ARRAYS[kind]}} for kind in metadata.get("accepts", ()) if kind in ARRAYS}
    return {**files, JSON: {"schema": {"anyOf": forms}, **({"examples": examples} if examples else {})}}


def answers(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what comes back; a number that JSON has not is null."""
    outputs = list(metadata["outputs"])
    # Those of a function that has not run yet are not known.
    row = _named(outputs, _row, is_output=True) if outputs else {"type": "object"}
    prediction = _row(outputs[0], is_output=True) if len(outputs) == 1 else row
    columns = _named(outputs, _column_or_null) if outputs else {"type": "object"}
    listed = object_of({"outputs": columns})
    listed["properties"]["errors"] = list_of({"anyOf": [{"type": "null"}, ref("Error")]})
    predictions = object_of({"predictions": list_of({"anyOf": [prediction, ref("ItemError")]})})
    forms = [row, predictions, listed, ref("InferResponse")]
    return {JSON: {"schema": {"anyOf": forms}}, **{kind: {"schema": {}} for kind in ARRAYS}}


def _named(tensors: Sequence[Tensor], described: Callable[..., Schema], **words: bool) -> Schema:
    return object_of({tensor["name"]: described(tensor, **words) for tensor in tensors})


def _sizes(tensor: Tensor) -> list[int]:
    """A row's sizes: the shape without the dimension that counts rows."""
    at = tensor.get("batch_dim", 0)
    return [size for index, size in enumerate(tensor["shape"]) if index != at]


def _row(tensor: Tensor, *, is_output: bool = False) -> Schema:
    """Describe a tensor's value in one row."""
    sizes = _sizes(tensor)
    element = _element(tensor["datatype"], is_output=is_output)
    if not sizes:
        # One element, or rows of which nothing is known: metadata says the same of both.
        return {"anyOf": [element, {"type": "array"}]} if element else {}
    return _nested(element, sizes)


def _whole(tensor: Tensor, *, is_output: bool = False) -> Schema:
    """Describe a tensor's value with all rows."""
    element = _element(tensor["datatype"], is_output=is_output)
    return _nested(element, tensor["shape"]) if len(tensor["shape"]) > 1 else {"type": "array"}


def _column_or_null(tensor: Tensor) -> Schema:
    """Describe an output of all rows, null where one failed."""
    if tensor.get("batch_dim", 0):
        return _whole(tensor, is_output=True)
    return list_of({"anyOf": [_row(tensor, is_output=True), {"type": "null"}]})


def _nested(element: Schema, sizes: Sequence[int]) -> Schema:
    schema = element
    for size in reversed(sizes):
        schema = list_of(schema)
        if size >= 0:
            schema |= {"minItems": size, "maxItems": size}
    return schema


def _element(datatype: str, *, is_output: bool) -> Schema:
    kind = _kind(datatype)[1]
    if kind == "integer":
        bits = int(datatype.lstrip("UINT"))
        low, high = (0, 2**bits) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return {"type": kind, "minimum": low, "maximum": high - 1}
    if kind == "number" and is_output:
        return {"type": [kind, "null"]}
    return {"type": kind} if kind else {}


def _kind(datatype: str) -> tuple[str, str, Callable[[int], Any]]:
    return next((kind for kind in KINDS if kind[0] in datatype), KINDS[-1])


def _examples(inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Write a request of one row in each form; nothing where that would be long."""
    sizes = {tensor["name"]: _example_sizes(tensor) for tensor in inputs}
    if sum(prod(each) for each in sizes.values()) > MOST_ELEMENTS:
        return {}
    row, columns = {}, {}
    for tensor in inputs:
        name = tensor["name"]
        row[name] = _filled(sizes[name], _elements(tensor))
        columns[name] = _filled(_with_rows(tensor, sizes[name]), _elements(tensor))
    examples = {"instances": {"instances": [row]}, "columns": {"inputs": columns}}
    # In a document of one row these would be taken for another form.
    if not row.keys() & {"instances", "inputs"}:
        examples["one row"] = row
    return {name: {"value": value} for name, value in sorted(examples.items())}


def _example_sizes(tensor: Tensor) -> list[int]:
    """Sizes of a row; where nothing is known of it, those of a few numbers."""
    if tensor["datatype"] == "ANY" and tensor["shape"] == [-1]:
        return [FREE_SIZE]
    return [FREE_SIZE if size < 0 else size for size in _sizes(tensor)]


def _with_rows(tensor: Tensor, sizes: list[int]) -> list[int]:
    at = tensor.get("batch_dim", 0)
    return [*sizes[:at], 1, *sizes[at:]]


def _elements(tensor: Tensor) -> Iterator[Any]:
    return map(_kind(tensor["datatype"])[2], count())


def _filled(sizes: Sequence[int], elements: Iterator[Any]) -> Any:
    if not sizes:
        return next(elements)
    return [_filled(sizes[1:], elements) for _ in range(sizes[0])]
