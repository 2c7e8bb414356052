"""The inputs of a micro-batch as one block of memory, and its outputs as another: one copy to a GPU, and one back.

arrays  -> Layout -> a block of bytes  -> to_device -> tensors that share it
results -> Sides  -> (B, W) float32    -> to_host   -> outputs by name
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from handlers.engines import Arrays, Outputs

# Kernels read up to so many bytes at once.
ALIGNMENT = 256
# Larger copies are not worth the pinned memory, which the process keeps.
MOST_PINNED = 2**25


class Layout:
    """The places of a micro-batch's arrays in a block of bytes."""

    def __init__(self, arrays: Arrays, rows: int | None = None) -> None:
        """Make room for arrays of these shapes and dtypes; with `rows`, for so many rows of each."""
        self._places: dict[str, tuple[slice, np.dtype[Any], tuple[int, ...]]] = {}
        self.size = 0
        for name, array in arrays.items():
            shape = array.shape if rows is None else (rows, *array.shape[1:])
            size = prod(shape) * array.itemsize
            self._places[name] = slice(self.size, self.size + size), array.dtype, shape
            self.size += -(-size // ALIGNMENT) * ALIGNMENT

    def write(self, arrays: Arrays, block: torch.Tensor) -> torch.Tensor:
        """Write arrays into a block, (size,) uint8 on the CPU, and return it.

        Rows of padding repeat the first row: any model accepts them, and they contain no NaN that is not its own.
        """
        for name, (place, dtype, shape) in self._places.items():
            array, space = arrays[name], block.numpy()[place].view(dtype).reshape(shape)
            if array.shape == shape:
                space[...] = array
            else:
                space[: len(array)], space[len(array) :] = array, array[:1]
        return block

    def tensors(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tensors in a block, which share its memory."""
        dtypes = {name: torch.from_numpy(np.empty(0, dtype)).dtype for name, (_, dtype, _) in self._places.items()}
        return {name: block[place].view(dtypes[name]).view(shape) for name, (place, _, shape) in self._places.items()}


def to_device(layout: Layout, arrays: Arrays, block: torch.Tensor) -> None:
    """Write arrays into a block on a device, with one copy."""
    block.copy_(layout.write(arrays, _host_memory((layout.size,), torch.uint8, block.device)), non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor of a device, and wait for it."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    own = _host_memory(tensor.shape, tensor.dtype, tensor.device).copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return own


def _host_memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    is_pinned = device.type == "cuda" and dtype.itemsize * int(np.prod(shape)) <= MOST_PINNED
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=is_pinned)


class Sides(NamedTuple):
    """Outputs side by side, (B, W) float32, and the shape of a row of each."""

    packed: torch.Tensor
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, results: Mapping[str, torch.Tensor], rows: int) -> "Sides | None":
        """Pack results; None if one of them does not have that many rows."""
        if any(result.shape[:1] != (rows,) for result in results.values()):
            return None
        flat = [result.float().reshape(rows, -1) for result in results.values()]
        packed = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        return cls(packed, {name: tuple(result.shape[1:]) for name, result in results.items()})

    def read(self, rows: int) -> Outputs:
        """Copy the first rows to the host, and return them by name."""
        array, outputs, start = to_host(self.packed[:rows]).numpy(), {}, 0
        for name, shape in self.shapes.items():
            end = start + int(np.prod(shape))
            outputs[name] = array[:, start:end].reshape(rows, *shape)
            start = end
        return outputs
