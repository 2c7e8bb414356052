"""A model that mixes its rows does not get as far as other people's requests."""

import numpy as np
import pytest

from deploy.build.tensors.proof import Arrays, prove
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import Signature, Tensor

SIGNATURE = Signature({"x": Tensor("x", "FP32", (-1, 4))}, {"y": Tensor("y", "FP32", (-1, 4))})


def test_model_that_mixes_its_rows_by_their_mean_is_refused() -> None:
    def mean(inputs: Arrays) -> Arrays:
        return {"y": inputs["x"] - inputs["x"].mean(axis=0, keepdims=True) / 2}

    def own(inputs: Arrays) -> Arrays:
        return {"y": np.tanh(inputs["x"])}

    prove(own, SIGNATURE, TensorsConfig())
    # Equal rows would not show it: their mean is each of them.
    with pytest.raises(InvalidConfig):
        prove(mean, SIGNATURE, TensorsConfig())
