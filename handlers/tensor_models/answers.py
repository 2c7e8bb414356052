"""Outputs of rows as answers that are not of the Open Inference Protocol. Pure.

    {"x": ..., ...}                -> write_row        -> {"y": ...}; the form is OneItem of handlers.protocol.responses
    {"instances": [...]}           -> write_prediction -> {"predictions": [...]}; the form is Instances
    {"inputs": {...}}              -> Columns          -> {"outputs": {...}}, and "errors" if rows failed

A result is a row's outputs, by the model's names, with the batch dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from handlers.aliases import Array
from handlers.errors import ItemError, WrongOutput
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.output_tensors import Arrays, Model, OutputTensors
from handlers.protocol.responses import OneItem, Response, encode_padded, status_of
from handlers.protocol.tensors import BF16, from_bfloat16
from handlers.tensor_models.signature import ANY, Tensor


def make_output_tensors(signature: Mapping[str, Tensor] | None) -> OutputTensors:
    """Return the way rows become tensors: joined along the batch dimension, or WrongOutput if they do not fit."""

    def arrays(results: Sequence[Mapping[str, Array]]) -> Arrays:
        first, *others = results
        if not others:
            return first
        if any(result.keys() != first.keys() for result in others):
            raise WrongOutput("The rows have different outputs, which one answer cannot contain.")
        return {name: _join(name, [result[name] for result in results], signature) for name in first}

    return OutputTensors([describe_tensor(tensor) for tensor in (signature or {}).values()], arrays)


def _join(name: str, rows: Sequence[Array], signature: Mapping[str, Tensor] | None) -> Array:
    if any(row.dtype != rows[0].dtype for row in rows):
        raise WrongOutput(f"{name}: the rows have different datatypes, which one tensor cannot contain.")
    try:
        return np.concatenate(rows, axis=signature[name].batch_dim if signature else 0)
    except ValueError:
        raise WrongOutput(
            f"{name}: the rows have different sizes, which one tensor cannot contain; send them as instances."
        ) from None


def describe_tensor(tensor: Tensor) -> TensorMetadata:
    """Describe a tensor for metadata; the protocol has no word for any shape."""
    return TensorMetadata(tensor.name, tensor.datatype or ANY, tensor.shape or (-1,), tensor.batch_dim)


def write_row(model: Model, result: object) -> dict[str, object]:
    arrays = model.outputs.arrays([result])
    return {name: _write_values(array.take(0, model.batch_dims.get(name, 0))) for name, array in arrays.items()}


def write_prediction(model: Model, result: object) -> object:
    """Write one row of a list: the value of the only output, or all of them by name."""
    values = write_row(model, result)
    return next(iter(values.values())) if len(values) == 1 else values


def _write_values(array: Any) -> object:
    """Write an array, or one of its elements, for the encoder; bytes that are not UTF-8 are replaced."""
    if isinstance(array, bytes | str):
        return _write_texts(array)
    if array.dtype == BF16:
        array = from_bfloat16(array)
    if array.dtype.kind == "O":
        return _write_texts(array.tolist())
    return np.ascontiguousarray(array) if array.ndim else array.item()


def _write_texts(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(map(_write_texts, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Columns:
    """The answer is {"outputs": {...}} with all rows, null for a failed one, and "errors" if one failed."""

    model: Model

    def pack(self, results: Sequence[object]) -> Response:
        if status_of(results) != 200:
            return OneItem().pack(results[:1])
        failed = [isinstance(result, ItemError) for result in results]
        if not any(failed):
            arrays = self.model.outputs.arrays(results)
            return Response(
                200, encode_padded({"outputs": {name: _write_values(each) for name, each in arrays.items()}})
            )
        rows = [None if isinstance(result, ItemError) else write_row(self.model, result) for result in results]
        names = next(row.keys() for row in rows if row is not None)
        errors = [result.to_json() if isinstance(result, ItemError) else None for result in results]
        outputs = {name: [row and row[name] for row in rows] for name in names}
        return Response(200, encode_padded({"outputs": outputs, "errors": errors}))
