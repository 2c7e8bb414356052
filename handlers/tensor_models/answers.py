"""Outputs of rows to answers that are not of the Open Inference Protocol. Pure.

    {"x": ..., ...}                -> row_values -> {"y": ...}; the form is OneItem of handlers.protocol.responses
    {"instances": [...]}           -> prediction -> {"predictions": [...]}; the form is Instances
    {"inputs": {...}}              -> Columns    -> {"outputs": {...}}, "errors" beside where rows failed

A result is a row's outputs, by the model's names, with the batch dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import ItemError, WrongOutput
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.output_tensors import Arrays, Model, OutputTensors
from handlers.protocol.responses import OneItem, Reply, encode_padded, status_of
from handlers.protocol.tensors import BF16, from_bfloat16
from handlers.tensor_models.signature import ANY, Tensor


def row_outputs(signature: Mapping[str, Tensor] | None) -> OutputTensors:
    """Return how rows become tensors: joined along the batch dimension; there are no names while `signature` is None.

    Its `arrays` raises WrongOutput where rows differ in size or outputs.
    """

    def arrays(results: Sequence[Mapping[str, NDArray[Any]]]) -> Arrays:
        first, *others = results
        if not others:
            return first
        if any(result.keys() != first.keys() for result in others):
            raise WrongOutput("The rows have not all the same outputs, and cannot stand in one answer.")
        return {name: _joined(name, [result[name] for result in results], signature) for name in first}

    return OutputTensors([described(tensor) for tensor in (signature or {}).values()], arrays)


def _joined(name: str, rows: Sequence[NDArray[Any]], signature: Mapping[str, Tensor] | None) -> NDArray[Any]:
    if any(row.dtype != rows[0].dtype for row in rows):
        raise WrongOutput(f"{name}: the rows are of different datatypes, which one tensor cannot hold.")
    try:
        return np.concatenate(rows, axis=signature[name].batch_dim if signature else 0)
    except ValueError:
        raise WrongOutput(
            f"{name}: the rows are of different sizes, which one tensor cannot hold; ask for them as instances."
        ) from None


def described(tensor: Tensor) -> TensorMetadata:
    """Describe a tensor for metadata; the protocol has no words for any shape."""
    return TensorMetadata(tensor.name, tensor.datatype or ANY, tensor.shape or (-1,), tensor.batch_dim)


def row_values(model: Model, result: Any) -> dict[str, Any]:
    """Write one row's outputs for JSON, without the batch dimension."""
    arrays = model.outputs.arrays([result])
    return {name: _values(array.take(0, model.batch_dims.get(name, 0))) for name, array in arrays.items()}


def prediction(model: Model, result: Any) -> Any:
    """Write one row for a list of them: the value of the only output, or all of them by name."""
    values = row_values(model, result)
    return next(iter(values.values())) if len(values) == 1 else values


def _values(array: Any) -> Any:
    """Write an array, or one of its elements, for an encoder that takes arrays of numbers.

    Bytes that are not UTF-8 are replaced.
    """
    if isinstance(array, bytes | str):
        return _texts(array)
    if array.dtype == BF16:
        array = from_bfloat16(array)
    if array.dtype.kind == "O":
        return _texts(array.tolist())
    return np.ascontiguousarray(array) if array.ndim else array.item()


def _texts(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [_texts(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Columns:
    """The answer is {"outputs": {...}} with all rows, null where one failed, and "errors" beside then."""

    model: Model

    def pack(self, results: Sequence[Any]) -> Reply:
        """Status as with Predictions."""
        if status_of(results) != 200:
            return OneItem().pack(results[:1])
        failed = [isinstance(result, ItemError) for result in results]
        if not any(failed):
            arrays = self.model.outputs.arrays(results)
            return Reply(200, encode_padded({"outputs": {name: _values(array) for name, array in arrays.items()}}))
        rows = [None if isinstance(result, ItemError) else row_values(self.model, result) for result in results]
        names = next(row.keys() for row in rows if row is not None)
        errors = [result.to_json() if isinstance(result, ItemError) else None for result in results]
        outputs = {name: [row and row[name] for row in rows] for name in names}
        return Reply(200, encode_padded({"outputs": outputs, "errors": errors}))
