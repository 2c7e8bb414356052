"""Numbers of JSON as rows of tensors."""

from typing import Any

import numpy as np
import pytest

from handlers.errors import TensorMismatch
from handlers.tensor_models.items import from_values
from handlers.tensor_models.signature import Tensor


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1, 2], "<i8"), ([1, 2.5], "<f8"), ([True, False], "?"), (["a"], "O"), ([], "<f8"), (3, "<i8")],
)
def test_value_of_any_datatype_is_read_as_what_json_has(value: Any, dtype: str) -> None:
    read = from_values(value, Tensor("x"), is_row=True)
    assert (read.dtype, read.tolist()) == (np.dtype(dtype), [value])


@pytest.mark.parametrize(
    ("datatype", "value"), [("UINT8", 256), ("UINT64", -1), ("INT64", 2**63), ("FP16", 65520.0), ("BF16", 3.5e38)]
)
def test_number_that_a_datatype_has_not_is_refused(datatype: str, value: Any) -> None:
    with pytest.raises(TensorMismatch, match=f"x: there is a number that {datatype} has not"):
        from_values([0, value], Tensor("x", datatype, (-1,)), is_row=False)


@pytest.mark.parametrize("value", [None, {}, [[1], [2, 3]], [1, "a"], [[], [1]], [1, True, 2.5]])
def test_value_that_is_no_tensor_is_refused(value: Any) -> None:
    for datatype in (None, "INT64"):
        with pytest.raises(TensorMismatch, match=r"x: .* is expected, nested as its shape is"):
            from_values(value, Tensor("x", datatype), is_row=False)
