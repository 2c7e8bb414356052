"""The forms of answers to requests that are neither of the Open Inference Protocol nor gRPC. Pure.

    {"instances": [...]}              -> Predictions -> {"predictions": [...]}, errors in their places
    {"inputs": {...}}, .npy, .npz     -> Columns     -> {"outputs": {...}}, "errors" beside where rows failed
    the same, Accept: .npy or .npz    -> File        -> such a file
    {"x": ..., ...}                   -> OneRow      -> {"y": ...}, or the error

A result is a row's outputs, by the model's names, with the batch dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import ItemError, NotAcceptable, WrongOutput
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.open_inference import ERROR, Model, errors_of
from handlers.protocol.output_tensors import Arrays
from handlers.protocol.responses import Reply, encode, encode_padded, status_of
from handlers.tensor_models.files import NPY, NPZ, to_npy, to_npz
from handlers.tensor_models.json_values import to_values
from handlers.tensor_models.signature import ANY, Tensor


class RowOutputs:
    """How rows become tensors, one row each; see `handlers.protocol.output_tensors.OutputTensors`.

    Those of a function may be known only once it has run: `signature` is set then, or stays None where what it gives
    depends on what it is given.
    """

    def __init__(self, signature: Mapping[str, Tensor] | None) -> None:
        """Take what is known of the outputs, by name; None where that is nothing."""
        self.signature = signature

    @property
    def names(self) -> tuple[str, ...]:
        """See `OutputTensors`; none while they are not known."""
        return tuple(self.signature or ())

    def arrays(self, results: Sequence[Mapping[str, NDArray[Any]]]) -> Arrays:
        """See `OutputTensors`; the rows of all results, joined along the batch dimension.

        Raises:
            WrongOutput: rows differ in size or outputs.
        """
        first, *others = results
        if not others:
            return first
        if any(result.keys() != first.keys() for result in others):
            raise WrongOutput("The rows have not all the same outputs, and cannot stand in one answer.")
        return {name: self._joined(name, [result[name] for result in results]) for name in first}

    def _joined(self, name: str, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if any(row.dtype != rows[0].dtype for row in rows):
            raise WrongOutput(f"{name}: the rows are of different datatypes, which one tensor cannot hold.")
        at = self.signature[name].batch_dim if self.signature else 0
        try:
            return np.concatenate(rows, axis=at)
        except ValueError:
            message = (
                f"{name}: the rows are of different sizes, which one tensor cannot hold; ask for them as instances."
            )
            raise WrongOutput(message) from None

    def metadata(self, example: Any) -> Sequence[TensorMetadata]:  # noqa: ARG002
        """See `OutputTensors`."""
        return [described(tensor) for tensor in (self.signature or {}).values()]


def described(tensor: Tensor) -> TensorMetadata:
    """Describe a tensor in the words of the protocol, which has none for what may be anything."""
    return TensorMetadata(tensor.name, tensor.datatype or ANY, tensor.shape or (-1,), tensor.batch_dim)


@dataclass(frozen=True, slots=True)
class OneRow:
    """The answer is the row's outputs by name, or the error with its status."""

    model: Model

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `handlers.protocol.responses.Form`."""
        (result,) = results
        if isinstance(result, ItemError):
            return Reply(result.code, encode(result.to_json()))
        return Reply(200, encode_padded(_values(result, self.model)))


@dataclass(frozen=True, slots=True)
class Predictions:
    """The answer is {"predictions": [...]}: the value of the only output, or all of them by name."""

    model: Model

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`. The status is 200 when at least one row has a result, otherwise that of the first error."""
        return Reply(
            status_of(results), encode_padded({"predictions": [self._prediction(result) for result in results]})
        )

    def _prediction(self, result: Any) -> Any:
        if isinstance(result, ItemError):
            return {"error": result.to_json()}
        values = _values(result, self.model)
        return next(iter(values.values())) if len(values) == 1 else values


def _values(result: Any, model: Model) -> dict[str, Any]:
    """Write one row's outputs for JSON, without the batch dimension."""
    arrays = model.outputs.arrays([result])
    return {name: to_values(array.take(0, model.batch_dims.get(name, 0))) for name, array in arrays.items()}


@dataclass(frozen=True, slots=True)
class Columns:
    """The answer is {"outputs": {...}} with all rows, null where one failed, and "errors" beside then."""

    model: Model

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`; status as with Predictions."""
        if status_of(results) != 200:
            first, *_ = results
            return Reply(first.code, encode(first.to_json()))
        failed = [isinstance(result, ItemError) for result in results]
        if not any(failed):
            arrays = self.model.outputs.arrays(results)
            return Reply(200, encode_padded({"outputs": {name: to_values(array) for name, array in arrays.items()}}))
        rows = [None if isinstance(result, ItemError) else _values(result, self.model) for result in results]
        names = next(row.keys() for row in rows if row is not None)
        errors = [result.to_json() if isinstance(result, ItemError) else None for result in results]
        outputs = {name: [row and row[name] for row in rows] for name in names}
        return Reply(200, encode_padded({"outputs": outputs, "errors": errors}))


@dataclass(frozen=True, slots=True)
class File:
    """The answer is a .npz file with all outputs, or a .npy file with the only one."""

    model: Model
    media_type: str

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`. In a .npz, failed rows have nothing in them, and the array `error` says why; in a .npy there is
        no room for that, so that one failed row fails the request.
        """
        errors = [result for result in results if isinstance(result, ItemError)]
        if errors and (self.media_type == NPY or len(errors) == len(results)):
            return Reply(errors[0].code, encode(errors[0].to_json()))
        arrays = self.model.arrays(results)
        if self.media_type == NPZ:
            if errors:
                arrays[ERROR] = errors_of(results)
            return Reply(200, to_npz(arrays), NPZ)
        if len(arrays) > 1:
            error = ItemError.of(
                NotAcceptable(f"The model has {len(arrays)} outputs; a .npy file has one. Accept {NPZ}.")
            )
            return Reply(error.code, encode(error.to_json()))
        (array,) = arrays.values()
        return Reply(200, to_npy(array), NPY)
