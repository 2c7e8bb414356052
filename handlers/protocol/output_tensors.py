"""Turn results of a task into output tensors, one row for each item. Pure.

    embeddings                       -> Vectors   -> FP32 (B, D)
    ranked labels, answers           -> Ranked    -> one tensor (B, k) for each of their fields; shorter lists padded
    records with the same fields     -> Columns   -> one tensor (B,) for each of their fields
    token ids, masks                 -> Padded    -> INT64 (B, T) each, as wide as the longest
    anything else                    -> Documents -> BYTES (B,), each item's JSON

A task says which in one line, and an archive's owner may give them other names (Renamed). Model puts the rows of good
items where they belong among failed ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from handlers.errors import ItemError
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.responses import encode
from handlers.protocol.tensors import datatype_of, to_bfloat16

# The output with the errors of the items; an answer has it when any item failed, or when the client asks for it.
ERROR = "error"

Arrays = Mapping[str, NDArray[Any]]
Record = Mapping[str, Any]

# These values stand where there is nothing, by `dtype.kind`; V is BF16.
_NOTHING: dict[str, Any] = {
    "f": np.nan,
    "i": -1,
    "u": 0,
    "b": False,
    "O": "",
    "V": to_bfloat16(np.array(np.nan)),
}


class OutputTensors(Protocol):
    """The way in which a task's results become tensors."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in the order of an answer."""

    def arrays(self, results: Sequence[Any]) -> Arrays:
        """Make the tensors, by name; each is (B, ...), FP32, INT64, BF16 (`handlers.protocol.tensors`) or objects.

        Args:
            results: B of the task's results, at least one, without errors.

        Raises:
            ValueError: a result holds what is no number.
        """

    def metadata(self, example: Callable[[], Any]) -> Sequence[TensorMetadata]:
        """Describe the tensors, in the order of an answer.

        Args:
            example: runs the model, and gives a result of the task; for those whose sizes are the model's.
        """


@dataclass(frozen=True, slots=True)
class Renamed:
    """Other tensors under the names that an archive's owner chose.

    Attributes:
        outputs: the task's.
        given: name of each tensor by the task's name of it.
    """

    outputs: OutputTensors
    given: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """See `OutputTensors`."""
        return tuple(self.given[name] for name in self.outputs.names)

    def arrays(self, results: Sequence[Any]) -> Arrays:
        """See `OutputTensors`."""
        return {self.given[name]: array for name, array in self.outputs.arrays(results).items()}

    def metadata(self, example: Callable[[], Any]) -> Sequence[TensorMetadata]:
        """See `OutputTensors`."""
        return [replace(tensor, name=self.given[tensor.name]) for tensor in self.outputs.metadata(example)]


@dataclass(frozen=True, slots=True)
class Documents:
    """Writes each item's result as JSON."""

    name: str = "result"

    @property
    def names(self) -> tuple[str, ...]:
        """See `OutputTensors`."""
        return (self.name,)

    def arrays(self, results: Sequence[Any]) -> Arrays:
        """See `OutputTensors`; BYTES (B,)."""
        return {self.name: np.array([encode(result) for result in results], object)}

    def metadata(self, example: Callable[[], Any]) -> Sequence[TensorMetadata]:  # noqa: ARG002
        """See `OutputTensors`."""
        return [TensorMetadata(self.name)]


@dataclass(frozen=True, slots=True)
class Columns:
    """Takes some fields of each result; a result that lacks one has nothing there: "", NaN or -1.

    Attributes:
        dtypes: the dtype of each field, by name.
    """

    dtypes: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """See `OutputTensors`."""
        return tuple(self.dtypes)

    def arrays(self, results: Sequence[Any]) -> Arrays:
        """See `OutputTensors`; (B,) each."""
        return {name: self._column(name, np.dtype(dtype), results) for name, dtype in self.dtypes.items()}

    def metadata(self, example: Callable[[], Any]) -> Sequence[TensorMetadata]:  # noqa: ARG002
        """See `OutputTensors`."""
        return self._metadata((-1,))

    def _metadata(self, shape: tuple[int, ...]) -> list[TensorMetadata]:
        return [TensorMetadata(name, datatype_of(np.empty(0, dtype)), shape) for name, dtype in self.dtypes.items()]

    def _column(self, name: str, dtype: np.dtype[Any], results: Sequence[Record]) -> NDArray[Any]:
        return np.array([result.get(name, _NOTHING[dtype.kind]) for result in results], dtype)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Stacks results that are arrays of one shape."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """See `OutputTensors`."""
        return (self.name,)

    def arrays(self, results: Sequence[NDArray[np.float32]]) -> Arrays:
        """See `OutputTensors`; FP32 (B, D)."""
        return {self.name: _finite(np.stack(results).astype(np.float32, copy=False))}

    def metadata(self, example: Callable[[], Any]) -> Sequence[TensorMetadata]:
        """See `OutputTensors`; the size of a vector is that of the example."""
        return [TensorMetadata(self.name, "FP32", (-1, *np.shape(example())))]


@dataclass(frozen=True, slots=True)
class Padded:
    """Stacks results that are records of whole numbers, one for each position, right-padded to the longest result.

    Attributes:
        fills: the number to pad with, by field.
    """

    fills: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """See `OutputTensors`."""
        return tuple(self.fills)

    def arrays(self, results: Sequence[Mapping[str, NDArray[np.int64]]]) -> Arrays:
        """See `OutputTensors`; INT64 (B, T) each."""
        return {name: self._stacked([result[name] for result in results], fill) for name, fill in self.fills.items()}

    def metadata(self, example: Callable[[], Any]) -> Sequence[TensorMetadata]:  # noqa: ARG002
        """See `OutputTensors`; the length is the request's affair."""
        return [TensorMetadata(name, "INT64", (-1, -1)) for name in self.fills]

    def _stacked(self, rows: Sequence[NDArray[np.int64]], fill: int) -> NDArray[np.int64]:
        stacked = np.full((len(rows), max(map(len, rows))), fill, np.int64)
        for into, row in zip(stacked, rows, strict=True):
            into[: len(row)] = row
        return stacked


def _as_they_are(result: Sequence[Record]) -> Sequence[Record]:
    return result


@dataclass(frozen=True, slots=True)
class Ranked(Columns):
    """Makes a tensor of each field of results that are records, best first, as wide as the longest result.

    Attributes:
        records: finds the records of one result.
    """

    records: Callable[[Any], Sequence[Record]] = _as_they_are

    def arrays(self, results: Sequence[Any]) -> Arrays:
        """See `OutputTensors`; (B, k) each, with "", NaN or -1 where a result has fewer than k records."""
        rows = [self.records(result) for result in results]
        return {name: self._table(name, np.dtype(dtype), rows) for name, dtype in self.dtypes.items()}

    def metadata(self, example: Callable[[], Any]) -> Sequence[TensorMetadata]:  # noqa: ARG002
        """See `OutputTensors`; how many records there are is the request's affair."""
        return self._metadata((-1, -1))

    def _table(self, name: str, dtype: np.dtype[Any], rows: Sequence[Sequence[Record]]) -> NDArray[Any]:
        table = np.full((len(rows), max(map(len, rows))), _NOTHING[dtype.kind], dtype)
        for row, records in zip(table, rows, strict=True):
            row[: len(records)] = _finite(np.array([record[name] for record in records], dtype))
        return table


LABELS = {"label": object, "score": np.float32}


@dataclass(frozen=True, slots=True)
class Model:
    """What an answer says of the model.

    Attributes:
        name: the name under which it is registered.
        version: its version; None leaves it out of answers.
        outputs: how its results become tensors.
        batch_dims: the dimension of an output that counts rows, where it is not the first, by name.
    """

    name: str = ""
    version: str | None = None
    outputs: OutputTensors = field(default_factory=Documents)
    batch_dims: Mapping[str, int] = field(default_factory=dict)

    def arrays(self, results: Sequence[Any]) -> dict[str, NDArray[Any]]:
        """Make the outputs, by name: a row for every item, with nothing in it where the item failed.

        Args:
            results: one per item, at least one of them no error.
        """
        good = [result for result in results if not isinstance(result, ItemError)]
        arrays = dict(self.outputs.arrays(good))
        if len(good) == len(results):
            return arrays
        is_good = np.array([not isinstance(result, ItemError) for result in results])
        return {name: _scattered(array, is_good, self.batch_dims.get(name, 0)) for name, array in arrays.items()}

    def output(self, name: str) -> str | None:
        """Find the output that a request asks for; where a model has one, clients call it what they like.

        Returns:
            Its name among `outputs`, or ERROR; None where there is no such output. Where the model's outputs are known
            only once it has run, any name is one until then.
        """
        if name in (*self.outputs.names, ERROR) or not self.outputs.names:
            return name
        return self.outputs.names[0] if len(self.outputs.names) == 1 else None


def _scattered(array: NDArray[Any], is_good: NDArray[np.bool_], dimension: int) -> NDArray[Any]:
    """Put the rows of good items in their places, and nothing in the others'.

    Args:
        array: (G, ...), a row for each good item.
        is_good: (B,), true for G items.
        dimension: the one that counts rows.

    Returns:
        (B, ...) of the same dtype.
    """
    shape = (*array.shape[:dimension], len(is_good), *array.shape[dimension + 1 :])
    spread = np.full(shape, _NOTHING[array.dtype.kind], array.dtype)
    spread[(slice(None),) * dimension + (is_good,)] = array
    return spread


def errors_of(results: Sequence[Any]) -> NDArray[Any]:
    """Write each item's error as JSON, and "" for good items: (B,) objects."""
    return np.array([encode(r.to_json()) if isinstance(r, ItemError) else b"" for r in results], object)


def _finite(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("a result holds what is no number")
    return array
