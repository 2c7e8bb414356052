"""Turn results of a task into output tensors, one row for each item. Pure.

embeddings                   -> vectors   -> FP32 (B, D)
ranked labels, answers       -> rankings  -> one tensor (B, k) for each field; shorter lists are padded
records with equal fields    -> columns   -> one tensor (B,) for each field
token ids, masks             -> sequences -> INT64 (B, T) each, as wide as the longest
all others                   -> documents -> BYTES (B,), each item's JSON
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from handlers.aliases import Array
from handlers.errors import InvalidOption, ItemError, WrongOutput
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.responses import encode
from handlers.protocol.tensors import datatype_of, to_bfloat16

# The output with the errors of the items; an answer has it if any item failed, or if the client names it.
ERROR = "error"

Arrays = Mapping[str, Array]
Record = Mapping[str, Any]

# The value of an empty element, by `dtype.kind`; V is BF16.
_NOTHING: dict[str, object] = {"f": np.nan, "i": -1, "u": 0, "b": False, "O": "", "V": to_bfloat16(np.array(np.nan))}


@dataclass(frozen=True, slots=True)
class OutputTensors:
    """A task's output tensors."""

    metadata: Sequence[TensorMetadata]  # in the order of an answer; -1 is a size that the request decides
    # Makes the tensors, by name, of B results, at least one, without errors: each is (B, ...), FP32, INT64, BF16
    # (`handlers.protocol.tensors`) or objects. It raises WrongOutput if a result contains NaN or infinity.
    arrays: Callable[[Sequence[Any]], Arrays]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.metadata)

    def rename(self, names: Mapping[str, str]) -> "OutputTensors":
        """Return these tensors under other names, by their own."""
        return OutputTensors(
            [replace(tensor, name=names[tensor.name]) for tensor in self.metadata],
            lambda results: {names[name]: array for name, array in self.arrays(results).items()},
        )


def documents() -> OutputTensors:
    """Write each item's result as JSON: BYTES (B,)."""
    return OutputTensors(
        [TensorMetadata("result")], lambda results: {"result": np.array([encode(each) for each in results], object)}
    )


def vectors(name: str, size: int = -1) -> OutputTensors:
    """Stack results that are vectors: FP32 (B, D); `size` is D, or -1 if it is unknown."""

    def arrays(results: Sequence[Any]) -> Arrays:
        if any(isinstance(each, list) for each in results):
            raise InvalidOption("late_chunking: has no tensors; send it as JSON to /predictions or /v1/embeddings.")
        return {name: _finite(name, np.stack(results).astype(np.float32, copy=False))}

    return OutputTensors([TensorMetadata(name, "FP32", (-1, size))], arrays)


def columns(dtypes: Mapping[str, Any]) -> OutputTensors:
    """Make a tensor (B,) of each field, by its dtype; "", NaN or -1 if a result lacks the field."""
    nothing = {name: _NOTHING[np.dtype(dtype).kind] for name, dtype in dtypes.items()}

    def arrays(results: Sequence[Record]) -> Arrays:
        return {
            name: np.array([result.get(name, nothing[name]) for result in results], dtype)
            for name, dtype in dtypes.items()
        }

    return OutputTensors([TensorMetadata(name, _datatype(dtype)) for name, dtype in dtypes.items()], arrays)


def rankings(
    dtypes: Mapping[str, Any], records: Callable[[Any], Sequence[Record]] = lambda result: result
) -> OutputTensors:
    """Make a tensor (B, k) of each field, by its dtype; k is the most records of a result.

    `records` returns the records of one result, best first. "", NaN or -1 fills the rows of results with fewer.
    """

    def arrays(results: Sequence[object]) -> Arrays:
        rows = [records(result) for result in results]
        return {
            name: _padded(
                [_finite(name, np.array([record[name] for record in row], dtype)) for row in rows],
                _NOTHING[np.dtype(dtype).kind],
            )
            for name, dtype in dtypes.items()
        }

    return OutputTensors([TensorMetadata(name, _datatype(dtype), (-1, -1)) for name, dtype in dtypes.items()], arrays)


def sequences(fills: Mapping[str, Any]) -> OutputTensors:
    """Stack results that are records of numbers for each position: (B, T) of the fills' dtypes, padded with them."""
    return OutputTensors(
        [TensorMetadata(name, _datatype(np.asarray(fill).dtype), (-1, -1)) for name, fill in fills.items()],
        lambda results: {
            name: _padded([_finite(name, np.asarray(result[name])) for result in results], fill)
            for name, fill in fills.items()
        },
    )


def matrices(name: str) -> OutputTensors:
    """Stack results that are vectors of tokens: FP32 (B, T, E), padded with zeros on the right, and their numbers."""

    def arrays(results: Sequence[Any]) -> Arrays:
        lengths = np.array([len(each) for each in results], np.int64)
        padded = np.zeros((len(results), max(lengths), results[0].shape[1]), np.float32)
        for into, matrix in zip(padded, results, strict=True):
            into[: len(matrix)] = _finite(name, matrix)
        return {name: padded, "tokens": lengths}

    return OutputTensors([TensorMetadata(name, "FP32", (-1, -1, -1)), TensorMetadata("tokens", "INT64", (-1,))], arrays)


def _datatype(dtype: Any) -> str:
    return datatype_of(np.empty(0, dtype))


def _padded(rows: Sequence[Array], fill: object) -> Array:
    padded = np.full((len(rows), max(map(len, rows))), fill, rows[0].dtype)
    for into, row in zip(padded, rows, strict=True):
        into[: len(row)] = row
    return padded


LABELS = {"label": object, "score": np.float32}


@dataclass(frozen=True, slots=True)
class Model:
    """The model's name, version and outputs in an answer."""

    name: str = ""
    version: str | None = None  # None if answers have none
    outputs: OutputTensors = field(default_factory=documents)
    # The dimension of an output that counts rows, if it is not the first.
    batch_dims: Mapping[str, int] = field(default_factory=dict)

    def arrays(self, results: Sequence[object]) -> dict[str, Array]:
        """Return the outputs by name, with a row for every item; the row of a failed item is empty."""
        is_good = np.array([not isinstance(result, ItemError) for result in results])
        arrays = dict(self.outputs.arrays([result for result in results if not isinstance(result, ItemError)]))
        if is_good.all():
            return arrays
        for name, array in arrays.items():
            dimension = self.batch_dims.get(name, 0)
            shape = (*array.shape[:dimension], len(results), *array.shape[dimension + 1 :])
            arrays[name] = np.full(shape, _NOTHING[array.dtype.kind], array.dtype)
            arrays[name].swapaxes(0, dimension)[is_good] = array.swapaxes(0, dimension)
        return arrays

    def output(self, name: str) -> str | None:
        """Return the output for a client's name of it; if a model has one output, the name may be any."""
        names = self.outputs.names
        # If the outputs are known only after a run, every name is valid before it.
        if name in (*names, ERROR) or not names:
            return name
        return names[0] if len(names) == 1 else None


def errors_of(results: Sequence[object]) -> Array:
    """Write each item's error as JSON, or "" if it has a result: (B,) objects."""
    return np.array([encode(r.to_json()) if isinstance(r, ItemError) else b"" for r in results], object)


def _finite(name: str, array: Array) -> Array:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise WrongOutput(f"{name}: the model returned NaN or infinity.")
    return array
