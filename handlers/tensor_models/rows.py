"""Rows of a model of tensors, and the micro-batches that they make. Pure.

    arrays of a request -> split_request, make_row -> Row, its Cost
    rows of a micro-batch -> collate -> arrays with the batch dimension, padded and with their masks
    outputs of a run, its rows -> split_outputs -> the outputs of each row
    signature, configured sizes -> make_sample_rows -> arrays of one row each, to warm the model up with

A row keeps its batch dimension, of size 1: rows are joined and cut along it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from handlers.aliases import Array
from handlers.engines import Arrays
from handlers.errors import InvalidConfig, OutOfMemory
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.tensors import DTYPES, make_objects
from handlers.tensor_models.checks import free_sizes
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import Signature, Tensor, fits

_ONE = Cost()  # the cost of a row if all sizes of the model are fixed
# Padded rows may have this many times their own elements together: a wide image and a high one fill a large square.
_MOST_PADDING = 8
_ROOM = 2**20  # elements that padded rows may always have: 4 MB of FP32

FREE_SIZE = 32  # the size of a free dimension if `warm_up` has none: both convolutions and sequences accept it
SEED = 0


@dataclass(frozen=True, slots=True)
class Row:
    arrays: Arrays  # by the model's names, with the batch dimension, of size 1; without a mask that was not sent
    cost: Cost


class Rows:
    def __init__(self, signature: Signature) -> None:
        self._inputs = tuple(signature.inputs.values())
        self._constants = signature.constants
        self._masks = signature.masks
        self._padded = {tensor.name: tensor for tensor in self._inputs if tensor.pad is not None}
        self._is_fixed = all(each.shape and not each.free and each.datatype for each in self._inputs)

    def make_row(self, arrays: Arrays) -> Row:
        """Make an item of checked arrays of one row."""
        return Row(arrays, _ONE if self._is_fixed else self._cost(arrays))

    def split_request(self, arrays: Arrays, count: int) -> list[dict[str, Array]]:
        return _split_rows(arrays, {tensor.name: tensor.batch_dim for tensor in self._inputs}, count)

    def _cost(self, arrays: Arrays) -> Cost:
        """Return a row's positions, and the group of rows that it can be joined with."""
        group: list[object] = []
        length = 1
        for tensor in self._inputs:
            array = arrays.get(tensor.name)
            if array is None or tensor.name in self._masks:
                continue
            sizes = array.shape if tensor.shape is None else free_sizes(array.shape, tensor)
            length = max(length, prod(sizes))
            if tensor.pad is None:
                group.append(sizes)
            if tensor.datatype is None:
                group.append(array.dtype.str)
        return Cost(length, tuple(group))

    def collate(self, rows: Sequence[Row]) -> dict[str, Array]:
        """Join rows of equal cost groups: new arrays, in C order, that the model may write to."""
        joined = {tensor.name: self._joined(tensor, rows) for tensor in self._inputs}
        return joined | {name: array.copy() for name, array in self._constants.items()}

    def _joined(self, tensor: Tensor, rows: Sequence[Row]) -> Array:
        if tensor.pad is not None:
            return _pad(tensor, [row.arrays[tensor.name] for row in rows], tensor.pad.value)
        source = self._masks.get(tensor.name)
        if source is None:
            joined = np.concatenate([row.arrays[tensor.name] for row in rows], axis=tensor.batch_dim)
            return np.ascontiguousarray(joined)
        own = [row.arrays.get(tensor.name) for row in rows]
        padded = self._padded[source]
        masks = [
            _make_mask(tensor, free_sizes(row.arrays[source].shape, padded)) if mask is None else mask
            for row, mask in zip(rows, own, strict=True)
        ]
        return _pad(tensor, masks, 0)

    def split_outputs(
        self, outputs: Arrays, rows: Sequence[Row], signature: Mapping[str, Tensor] | None
    ) -> list[dict[str, Array]]:
        """Return the outputs of each row, views with the batch dimension; padded ones are cut to the row's sizes."""
        signature = signature or {name: Tensor(name) for name in outputs}
        parts = _split_rows(outputs, {name: tensor.batch_dim for name, tensor in signature.items()}, len(rows))
        for name in outputs:
            tensor = signature[name]
            if tensor.follows is not None:
                for part, row in zip(parts, rows, strict=True):
                    sizes = free_sizes(row.arrays[tensor.follows].shape, self._padded[tensor.follows])
                    part[name] = part[name][_find_own_part(tensor, sizes)]
        return parts


def _split_rows(arrays: Arrays, dimensions: Mapping[str, int], count: int) -> list[dict[str, Array]]:
    """Split arrays into rows along their dimensions; views that keep the dimension."""
    if count == 1:
        return [dict(arrays)]
    before = {name: (slice(None),) * dimensions[name] for name in arrays}
    return [
        {name: array[(*before[name], slice(index, index + 1))] for name, array in arrays.items()}
        for index in range(count)
    ]


def _pad(tensor: Tensor, arrays: Sequence[Array], value: object) -> Array:
    """Join arrays of different free sizes, each in the low corner of its row."""
    shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    shape[tensor.batch_dim] = len(arrays)
    if prod(shape) > max(_ROOM, _MOST_PADDING * sum(array.size for array in arrays)):
        raise OutOfMemory
    joined = np.full(shape, value, arrays[0].dtype)
    for index, array in enumerate(arrays):
        place = [slice(0, size) for size in array.shape]
        place[tensor.batch_dim] = slice(index, index + 1)
        joined[tuple(place)] = array
    return joined


def _make_mask(mask: Tensor, sizes: Sequence[int]) -> Array:
    shape = [*sizes[: mask.batch_dim], 1, *sizes[mask.batch_dim :]]
    dtype = np.dtype(np.float32) if mask.datatype == "BF16" else DTYPES[mask.datatype or "INT64"]
    return np.ones(shape, dtype)


def _find_own_part(tensor: Tensor, sizes: Sequence[int]) -> tuple[slice, ...]:
    free = dict(zip(tensor.free, sizes, strict=True))
    return tuple(slice(0, free[i]) if i in free else slice(None) for i in range(len(tensor.shape or ())))


def make_sample_rows(signature: Signature, config: TensorsConfig) -> list[dict[str, Array]]:
    """Make a row, (1, ...), of each warm-up size, BF16 as float32; none if any datatype or shape is accepted."""
    inputs = signature.inputs
    for sizes in config.warm_up:
        if unknown := sorted(sizes.keys() - inputs.keys()):
            raise InvalidConfig(f"warm_up: {', '.join(unknown)}: this model has {', '.join(inputs)}")
    if any(tensor.datatype is None or tensor.shape is None for tensor in inputs.values()):
        return []
    return [_make_sample(signature, sizes) for sizes in config.warm_up or ({},)]


def _make_sample(signature: Signature, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    noise = np.random.default_rng(SEED)
    # The server makes a mask without a size in `warm_up`.
    own = {name: each for name, each in signature.inputs.items() if name not in signature.masks or name in sizes}
    return {name: _make_noise(each, _make_shape(each, sizes.get(name)), noise) for name, each in own.items()}


def _make_shape(tensor: Tensor, sizes: tuple[int, ...] | None) -> tuple[int, ...]:
    wanted = tensor.row_shape or ()
    if sizes is None:
        sizes = tuple(FREE_SIZE if size < 0 else size for size in wanted)
    if not fits(sizes, wanted):
        raise InvalidConfig(f"warm_up: {tensor.name}: a row is {list(wanted)}, not {list(sizes)}")
    return (*sizes[: tensor.batch_dim], 1, *sizes[tensor.batch_dim :])


def _make_noise(tensor: Tensor, shape: tuple[int, ...], noise: np.random.Generator) -> Array:
    """Return random numbers; whole ones are 0 or 1, which are valid indices of any table."""
    dtype = DTYPES[str(tensor.datatype)]
    if dtype.kind == "O":
        return make_objects([b"a"] * int(np.prod(shape))).reshape(shape)
    if dtype.kind in "iub":
        return noise.integers(0, 2, shape).astype(dtype)
    return noise.random(shape).astype(np.float32 if dtype.kind == "V" else dtype)
