from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from handlers.probabilities import sigmoid, softmax

logits = arrays(np.float32, array_shapes(min_dims=2, max_dims=3, max_side=6), elements=st.floats(-80, 80, width=32))


def test_softmax_of_logarithms_gives_the_shares_back() -> None:
    rows = np.log(np.array([[1, 2, 5], [4, 4, 2]], np.float64))
    assert softmax(rows) == pytest.approx(np.array([[0.125, 0.25, 0.625], [0.4, 0.4, 0.2]]), rel=1e-15)


def test_softmax_axis_is_the_one_that_sums_to_one() -> None:
    columns = np.log(np.array([[1, 3], [3, 1]], np.float64))
    assert softmax(columns, axis=0) == pytest.approx(np.array([[0.25, 0.75], [0.75, 0.25]]), rel=1e-15)


def test_softmax_huge_logits_do_not_overflow() -> None:
    assert softmax(np.array([1e38, 1e38, -1e38], np.float32)).tolist() == [0.5, 0.5, 0.0]


def test_sigmoid_of_known_logits_gives_the_probabilities() -> None:
    known = np.array([0, np.log(3), -np.log(3)], np.float64)
    assert sigmoid(known) == pytest.approx(np.array([0.5, 0.75, 0.25]), rel=1e-15)


def test_sigmoid_huge_logits_do_not_overflow() -> None:
    assert sigmoid(np.array([1e38, -1e38], np.float32)).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_any_float_keeps_its_dtype(dtype: Any) -> None:
    ones = np.ones((2, 3), dtype)
    assert softmax(ones).dtype == sigmoid(ones).dtype == dtype


@given(logits)
def test_probabilities_any_logits_are_those_of_torch(values: Any) -> None:
    tensor = torch.from_numpy(values)
    for axis in range(values.ndim):
        assert softmax(values, axis) == pytest.approx(torch.softmax(tensor, axis).numpy(), rel=2e-5, abs=1e-30)
    assert sigmoid(values) == pytest.approx(torch.sigmoid(tensor).numpy(), rel=2e-5, abs=1e-30)
