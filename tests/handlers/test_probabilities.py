from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from handlers.probabilities import sigmoid, softmax

logits = arrays(np.float32, array_shapes(min_dims=2, max_dims=3, max_side=6), elements=st.floats(-80, 80, width=32))


@given(logits)
def test_probabilities_of_any_logits_are_those_of_torch(values: Any) -> None:
    tensor = torch.from_numpy(values)
    for axis in range(values.ndim):
        assert softmax(values, axis) == pytest.approx(torch.softmax(tensor, axis).numpy(), rel=2e-5, abs=1e-30)
    assert sigmoid(values) == pytest.approx(torch.sigmoid(tensor).numpy(), rel=2e-5, abs=1e-30)
    assert softmax(values).dtype == sigmoid(values).dtype == np.float32


def test_huge_logits_do_not_overflow() -> None:
    assert softmax(np.array([1e38, 1e38, -1e38], np.float32)).tolist() == [0.5, 0.5, 0.0]
    assert sigmoid(np.array([1e38, -1e38], np.float32)).tolist() == [1.0, 0.0]
