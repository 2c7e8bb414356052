import numpy as np
import pytest

from handlers.engines import Outputs
from handlers.engines.function import FunctionEngine
from handlers.errors import OutOfMemory


def double(numbers: np.ndarray) -> Outputs:
    return {"doubles": numbers * 2}


def exhausted(numbers: np.ndarray) -> Outputs:
    raise MemoryError


def test_function_engine_calls_its_function_with_named_arrays() -> None:
    engine = FunctionEngine(double, ["numbers"])
    outputs = engine.run({"numbers": np.array([1.0, 2.5], np.float32)})
    assert outputs["doubles"].tolist() == [2.0, 5.0]
    assert engine.input_names == ("numbers",)
    assert engine.description == "function double"


def test_function_engine_out_of_memory_says_so_for_the_batch_to_be_halved() -> None:
    with pytest.raises(OutOfMemory):
        FunctionEngine(exhausted, ["numbers"]).run({"numbers": np.zeros(1)})
