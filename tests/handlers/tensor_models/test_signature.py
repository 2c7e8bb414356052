from typing import Any

import numpy as np
import pytest

from handlers.config import parse
from handlers.errors import InvalidConfig, WrongOutput
from handlers.tensor_models.answers import make_output_tensors
from handlers.tensor_models.checks import check_outputs
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.rows import make_sample_rows
from handlers.tensor_models.signature import DeclaredSignature, Tensor, merge_signature
from tests.tables import table

SAID = DeclaredSignature(
    (Tensor("x", "FP32", (-1, -1, 2)), Tensor("m", "INT8", (-1, -1)), Tensor("any")),
    (Tensor("y", "FP32", (-1, -1)), Tensor("n", None, None)),
)
PAD = {"pad": {"mask": "m"}}


def settings(**values: Any) -> TensorsConfig:
    return parse(TensorsConfig, values)


def padded(datatype: str, value: Any) -> dict[str, Any]:
    return {"inputs": {"any": {"datatype": datatype, "shape": [-1, -1], "pad": {"mask": "m", "value": value}}}}


def test_configuration_settles_what_the_model_leaves_open_and_what_it_says_is_read_again() -> None:
    for said in (SAID, DeclaredSignature((Tensor("x"),))):
        assert DeclaredSignature.from_json(said.to_json()) == said
    config = settings(
        inputs={"any": {"datatype": "BYTES", "shape": [3, 8], "batch_dim": 1}, "x": {"shape": [8, 5, 2]}},
        outputs={"n": {"datatype": "INT64", "shape": [8]}, "y": {"batch_dim": 1}},
    )
    signature = merge_signature(SAID, config)
    wanted = ["FP32 [-1, 5, 2]", "INT8 [-1, -1]", "BYTES [3, -1]"]
    assert [str(tensor) for tensor in signature.inputs.values()] == wanted
    assert list(signature.outputs or ()) == ["y", "n"]
    assert (signature.outputs or {})["y"].free == (0,)
    assert signature.inputs["any"].row_shape == (3,)
    most = settings(inputs={"any": {"shape": [1] * 16, "batch_dim": 15}}, warm_up=[{"any": [1] * 15}])
    assert len(most.inputs["any"].shape or ()) == 16


@table(
    ({"inputs": {"z": {}}}, "inputs: z: this model has any, m, x"),
    ({"outputs": {"z": {}}}, "outputs: z: this model has n, y"),
    ({"inputs": {"x": {"datatype": "FP64"}}}, "inputs.x: the model has FP32, not FP64"),
    ({"inputs": {"x": {"shape": [-1, -1, 3]}}}, r"inputs.x: the model has \[-1, -1, 2\], not \[-1, -1, 3\]"),
    ({"inputs": {"x": {"batch_dim": 3}}}, r"inputs.x: shape \[-1, -1, 2\] lacks batch_dim 3"),
    ({"inputs": {"x": {"pad": {"mask": "q"}}}}, "inputs.x.pad.mask: q must be another input"),
    ({"inputs": {"x": {"shape": [-1, 5, 2], **PAD}}}, r"inputs.x.pad: FP32 \[-1, 5, 2\] has no free dimension"),
    (padded("BYTES", 0), "BYTES cannot be padded"),
    ({"inputs": {"x": {"pad": {"mask": "any"}}}}, "any is any datatype of any shape; a number for each"),
    ({"inputs": {"x": {"pad": {"mask": "m", "value": True}}}}, "inputs.x.pad.value: True is not a valid FP32"),
    (padded("UINT8", -1), "-1 is not a valid UINT8"),
    ({"inputs": {"x": PAD, **padded("FP32", 0)["inputs"]}}, "m is the mask of x and of any"),
    ({"outputs": {"y": {"follows": "x"}}}, "outputs.y.follows: x must be an input with a pad"),
    ({"inputs": {"x": PAD}, "outputs": {"y": {"shape": [-1, 4], "follows": "x"}}}, "different numbers of free"),
    ({"warm_up": [{"z": [1]}]}, "warm_up: z: this model has x, m, any"),
    *(({"inputs": {"x": {"shape": shape}}}, r"inputs\.x: shape") for shape in ([1] * 17, [], [-2])),
    *(({"inputs": {"x": {"batch_dim": place}}}, r"inputs\.x: batch_dim") for place in (-1, 16)),
    *(({"warm_up": [{"x": sizes}]}, r"warm_up\.0\.x") for sizes in ([1] * 16, [0])),
)
def test_configuration_that_is_wrong_or_that_the_model_contradicts_is_told_so(values: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        make_sample_rows(merge_signature(SAID, config := settings(**values)), config)


@table(
    ([{"x": np.array([1], np.int8)}, {"y": np.array([1], np.int8)}], "The rows have different outputs"),
    ([{"x": np.array([1], np.int8)}, {"x": np.array([1], np.uint8)}], "x: the rows have different datatypes"),
    ([{"x": np.array([[1]], np.int8)}, {"x": np.array([[1, 2]], np.int8)}], "x: the rows have different sizes"),
)
def test_rows_that_one_answer_cannot_contain_are_told_apart(rows: Any, words: str) -> None:
    outputs = make_output_tensors(None)
    assert outputs.arrays(rows[:1]) == rows[0]
    with pytest.raises(WrongOutput, match=words):
        outputs.arrays(rows)
    joined = make_output_tensors({"x": Tensor("x", batch_dim=1)}).arrays([{"x": np.array([[1], [2]], np.int8)}] * 2)
    assert joined["x"].tolist() == [[1, 1], [2, 2]]
    for name in ("error", "", 7):
        with pytest.raises(WrongOutput, match=r"reserved for the errors|a text is expected"):
            check_outputs({name: np.array([1], np.int8)}, None, 1, {})
