"""Turn results of a task into output tensors, one row for each item. Pure.

    embeddings                       -> vectors   -> FP32 (B, D)
    ranked labels, answers           -> ranked    -> one tensor (B, k) for each of their fields; shorter lists padded
    records with the same fields     -> columns   -> one tensor (B,) for each of their fields
    token ids, masks                 -> padded    -> INT64 (B, T) each, as wide as the longest
    anything else                    -> documents -> BYTES (B,), each item's JSON

A task says which in one line, and an archive's owner may choose other names (renamed). Model puts the rows of good
items in their places among failed ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import ItemError, WrongOutput
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.responses import encode
from handlers.protocol.tensors import datatype_of, to_bfloat16

# The output with the errors of the items; an answer has it when any item failed, or when the client asks for it.
ERROR = "error"

Arrays = Mapping[str, NDArray[Any]]
Record = Mapping[str, Any]

# The value that stands where there is none, by `dtype.kind`; V is BF16.
_NOTHING: dict[str, Any] = {"f": np.nan, "i": -1, "u": 0, "b": False, "O": "", "V": to_bfloat16(np.array(np.nan))}


@dataclass(frozen=True, slots=True)
class OutputTensors:
    """The way in which a task's results become tensors.

    Attributes:
        metadata: the tensors, in the order of an answer; -1 is a size that is the request's.
        arrays: makes the tensors, by name, of B results, at least one, without errors: each is (B, ...), FP32, INT64,
            BF16 (`handlers.protocol.tensors`) or objects. It raises WrongOutput if a result contains NaN or infinity.
    """

    metadata: Sequence[TensorMetadata]
    arrays: Callable[[Sequence[Any]], Arrays]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in the order of an answer."""
        return tuple(tensor.name for tensor in self.metadata)

    def renamed(self, given: Mapping[str, str]) -> "OutputTensors":
        """Return the same tensors under other names, by their own."""
        return OutputTensors(
            [replace(tensor, name=given[tensor.name]) for tensor in self.metadata],
            lambda results: {given[name]: array for name, array in self.arrays(results).items()},
        )


def documents() -> OutputTensors:
    """Write each item's result as JSON: BYTES (B,)."""
    return OutputTensors(
        [TensorMetadata("result")], lambda results: {"result": np.array([encode(each) for each in results], object)}
    )


def vectors(name: str, size: int = -1) -> OutputTensors:
    """Stack results that are vectors: FP32 (B, D); `size` is D, where it is known."""
    return OutputTensors(
        [TensorMetadata(name, "FP32", (-1, size))],
        lambda results: {name: _finite(name, np.stack(results).astype(np.float32, copy=False))},
    )


def columns(dtypes: Mapping[str, Any]) -> OutputTensors:
    """Take some fields of each result, (B,) each, by their dtypes; where a result lacks one stands "", NaN or -1."""
    nothing = {name: _NOTHING[np.dtype(dtype).kind] for name, dtype in dtypes.items()}

    def arrays(results: Sequence[Record]) -> Arrays:
        return {
            name: np.array([result.get(name, nothing[name]) for result in results], dtype)
            for name, dtype in dtypes.items()
        }

    return OutputTensors([TensorMetadata(name, _datatype(dtype)) for name, dtype in dtypes.items()], arrays)


def ranked(
    dtypes: Mapping[str, Any], records: Callable[[Any], Sequence[Record]] = lambda result: result
) -> OutputTensors:
    """Make a tensor (B, k) of each field of results that are records, best first, as wide as the longest result.

    Args:
        dtypes: the dtype of each field, by name; "", NaN or -1 stands where a result has fewer records.
        records: finds the records of one result.
    """

    def arrays(results: Sequence[Any]) -> Arrays:
        rows = [records(result) for result in results]
        return {
            name: _padded(
                [_finite(name, np.array([record[name] for record in row], dtype)) for row in rows],
                _NOTHING[np.dtype(dtype).kind],
            )
            for name, dtype in dtypes.items()
        }

    return OutputTensors([TensorMetadata(name, _datatype(dtype), (-1, -1)) for name, dtype in dtypes.items()], arrays)


def padded(fills: Mapping[str, int]) -> OutputTensors:
    """Stack results that are records of whole numbers, one for each position: INT64 (B, T), right-padded by `fills`."""
    return OutputTensors(
        [TensorMetadata(name, "INT64", (-1, -1)) for name in fills],
        lambda results: {name: _padded([result[name] for result in results], fill) for name, fill in fills.items()},
    )


def _datatype(dtype: Any) -> str:
    return datatype_of(np.empty(0, dtype))


def _padded(rows: Sequence[NDArray[Any]], fill: Any) -> NDArray[Any]:
    padded = np.full((len(rows), max(map(len, rows))), fill, rows[0].dtype)
    for into, row in zip(padded, rows, strict=True):
        into[: len(row)] = row
    return padded


LABELS = {"label": object, "score": np.float32}


@dataclass(frozen=True, slots=True)
class Model:
    """What an answer says of the model."""

    name: str = ""
    version: str | None = None  # None leaves it out of answers
    outputs: OutputTensors = field(default_factory=documents)
    # The dimension of an output that counts rows, if it is not the first.
    batch_dims: Mapping[str, int] = field(default_factory=dict)

    def arrays(self, results: Sequence[Any]) -> dict[str, NDArray[Any]]:
        """Return the outputs, by name: a row for every item, with nothing in it where the item failed."""
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
        """Find the output that a request asks for; where a model has one, clients may call it by any name."""
        names = self.outputs.names
        # Where the model's outputs are known only once it has run, any name is one until then.
        if name in (*names, ERROR) or not names:
            return name
        return names[0] if len(names) == 1 else None


def errors_of(results: Sequence[Any]) -> NDArray[Any]:
    """Write each item's error as JSON, and "" for good items: (B,) objects."""
    return np.array([encode(r.to_json()) if isinstance(r, ItemError) else b"" for r in results], object)


def _finite(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise WrongOutput(f"{name}: the model returned NaN or infinity.")
    return array
