"""Numbers and strings of JSON, nested as a tensor is, to an array of its datatype, and back. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import TensorMismatch
from handlers.protocol.tensors import BF16, DTYPES, JSON_TYPES, from_bfloat16, to_bfloat16
from handlers.tensor_models.signature import Shape, Tensor, without

# What the elements of a tensor of any datatype are read as, by the type of the first that decides.
_GUESSED = ((str, "BYTES"), (float, "FP64"), (int, "INT64"), (bool, "BOOL"))


def from_values(value: Any, tensor: Tensor, *, is_row: bool) -> NDArray[Any]:
    """Read what a JSON document holds for an input.

    Args:
        value: a number, a string, or lists of them, nested.
        tensor: what is expected. Where any datatype is, whole numbers are INT64, others FP64, strings BYTES.
        is_row: whether it is one row, without the batch dimension, or all of them.

    Returns:
        An array with the batch dimension, of a dtype of DTYPES; it has as many dimensions as the tensor, and is to be
        checked.

    Raises:
        TensorMismatch: it is no such value.
    """
    # They stay objects: left to itself, numpy makes a number of true, and gives strings the room of the longest.
    listed = np.array(value, object)
    types = set(map(type, listed.ravel().tolist()))
    datatype = tensor.datatype or next((name for kind, name in _GUESSED if kind in types), "FP64")
    dtype = DTYPES[datatype]
    expected = tensor.shape if not is_row or tensor.shape is None else without(tensor.shape, tensor.batch_dim)
    if not types <= JSON_TYPES["f" if dtype == BF16 else dtype.kind]:
        raise TensorMismatch(f"{tensor.name}: {datatype} {_listed(expected)} is expected, nested as its shape is.")
    if expected is not None and len(listed.shape) != len(expected):
        raise TensorMismatch(
            f"{tensor.name}: {datatype} {_listed(expected)} is expected; {list(listed.shape)} was sent."
        )
    try:
        with np.errstate(over="raise"):
            array = listed.astype(np.float32 if dtype == BF16 else dtype)
    except (OverflowError, FloatingPointError):
        raise TensorMismatch(f"{tensor.name}: there is a number that {datatype} has not.") from None
    if dtype == BF16:
        array = to_bfloat16(array)
    if not is_row:
        return array
    if tensor.batch_dim > array.ndim:
        raise TensorMismatch(f"{tensor.name}: a row needs at least {tensor.batch_dim} dimensions.")
    return np.expand_dims(array, tensor.batch_dim)


def _listed(shape: Shape | None) -> str:
    return "of any shape" if shape is None else str(list(shape))


def to_values(array: Any) -> Any:
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
