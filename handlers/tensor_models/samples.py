"""Rows to warm a model up with, of the sizes that its configuration names. Pure.

signature, sizes -> sample_rows -> arrays of one row each, seeded noise; None where it is not known what a row is
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import InvalidConfig
from handlers.protocol.tensors import DTYPES, objects
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import Signature, Tensor

# A free dimension is taken to be so long where `warm_up` does not say: convolutions take it, and so do sequences.
FREE_SIZE = 32
SEED = 0


def sample_rows(signature: Signature, config: TensorsConfig) -> list[dict[str, NDArray[Any]]]:
    """Make a row of each of the configured sizes, or one where there are none.

    Returns:
        Arrays by the model's names, with the batch dimension, of size 1; numbers of BF16 as float32. No row where a
        datatype or a shape may be any.

    Raises:
        InvalidConfig: `warm_up` names an input that there is not, or sizes that it cannot have.
    """
    inputs = signature.inputs
    for sizes in config.warm_up:
        if unknown := sorted(sizes.keys() - inputs.keys()):
            raise InvalidConfig(f"warm_up: {', '.join(unknown)}: this model has {', '.join(inputs)}")
    if any(tensor.datatype is None or tensor.shape is None for tensor in inputs.values()):
        return []
    return [_row(signature, sizes) for sizes in config.warm_up or ({},)]


def _row(signature: Signature, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    noise = np.random.default_rng(SEED)
    row = {}
    for name, tensor in signature.inputs.items():
        # A mask that says nothing else is the server's own.
        if name not in signature.masks or name in sizes:
            row[name] = _array(tensor, _shape(tensor, sizes.get(name)), noise)
    return row


def _shape(tensor: Tensor, sizes: tuple[int, ...] | None) -> tuple[int, ...]:
    wanted = tensor.row_shape or ()
    if sizes is None:
        sizes = tuple(FREE_SIZE if size < 0 else size for size in wanted)
    if len(sizes) != len(wanted) or any(a not in (-1, b) for a, b in zip(wanted, sizes, strict=True)):
        raise InvalidConfig(f"warm_up: {tensor.name}: a row is {list(wanted)}, and not {list(sizes)}")
    return (*sizes[: tensor.batch_dim], 1, *sizes[tensor.batch_dim :])


def _array(tensor: Tensor, shape: tuple[int, ...], noise: np.random.Generator) -> NDArray[Any]:
    """Numbers that models take: whole ones are 0 or 1, which are indices of anything."""
    dtype = DTYPES[str(tensor.datatype)]
    if dtype.kind == "O":
        return objects([b"a"] * int(np.prod(shape))).reshape(shape)
    if dtype.kind in "iub":
        return noise.integers(0, 2, shape).astype(dtype)
    return noise.random(shape).astype(np.float32 if dtype.kind == "V" else dtype)
