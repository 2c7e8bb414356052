"""What a call is given, checked before anything is sent. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchserve_client.pytriton.exceptions import PyTritonClientValueError
from torchserve_client.pytriton.model_config import TensorSpec

Array = NDArray[Any]
Arrays = dict[str, Array]


def check_given(inputs: Sequence[Any], named_inputs: Mapping[str, Any], *, is_batch: bool) -> None:
    """Check the arrays of a call.

    Args:
        inputs, named_inputs: by position, or by name.
        is_batch: whether the first dimension of each counts rows.

    Raises:
        PyTritonClientValueError: there are none, or some of both kinds, or they do not agree on the number of rows.
        TypeError: one is no array.
    """
    if not inputs and not named_inputs:
        raise PyTritonClientValueError("no input: give arrays by position or by name")
    if inputs and named_inputs:
        raise PyTritonClientValueError("give arrays by position or by name, and not some of them so and others so")
    check_arrays(named_inputs or {f"input {index}": array for index, array in enumerate(inputs)}, is_batch=is_batch)


def check_arrays(arrays: Mapping[str, Any], *, is_batch: bool = True) -> int:
    """Check arrays by name.

    Returns:
        The number of rows that they have in common; 1 where the first dimension counts none.

    Raises:
        PyTritonClientValueError, TypeError: see `check_given`.
    """
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name}: an array of numpy is expected, and not {type(array).__name__}")
    if not is_batch:
        return 1
    if flat := [name for name, array in arrays.items() if array.ndim == 0]:
        raise PyTritonClientValueError(f"no first dimension to count rows: {', '.join(flat)}")
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) != 1:
        words = ", ".join(f"{name} has {count}" for name, count in rows.items()) or "there is no array"
        raise PyTritonClientValueError(f"the first dimensions, which count rows, differ: {words}")
    return next(iter(rows.values()))


def check_extras(kind: str, values: Any) -> None:
    """Check the parameters or headers of a call.

    Raises:
        PyTritonClientValueError: they are no dictionary of texts, numbers, and truth values by name.
    """
    if values is None:
        return
    if not isinstance(values, dict):
        raise PyTritonClientValueError(f"{kind}: a dictionary is expected, and not {type(values).__name__}")
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | bool):
            raise PyTritonClientValueError(f"{kind}: {name}: texts, numbers and truth values by name are expected")


def by_name(inputs: Sequence[Array], named_inputs: Mapping[str, Array], specs: Sequence[TensorSpec]) -> Arrays:
    """Give arrays that came by position the names of the model's inputs, in its order.

    Raises:
        PyTritonClientValueError: the model has fewer.
    """
    if named_inputs:
        return dict(named_inputs)
    if len(inputs) > len(specs):
        known = ", ".join(spec.name for spec in specs) or "none"
        raise PyTritonClientValueError(f"{len(inputs)} arrays by position for a model whose inputs are: {known}")
    return {spec.name: array for spec, array in zip(specs, inputs, strict=False)}
