from typing import Any

import pytest

from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.samples import sample_rows
from handlers.tensor_models.signature import Said, Tensor, signed

SAID = Said(
    (Tensor("x", "FP32", (-1, -1, 2)), Tensor("m", "INT8", (-1, -1)), Tensor("any")),
    (Tensor("y", "FP32", (-1, -1)), Tensor("n", None, None)),
)
PAD = {"pad": {"mask": "m"}}


def settings(**values: Any) -> TensorsConfig:
    return parse(TensorsConfig, values)


def test_what_a_model_says_is_written_and_read_again() -> None:
    assert Said.from_json(SAID.to_json()) == SAID
    assert Said.from_json(Said((Tensor("x"),)).to_json()) == Said((Tensor("x"),))


def test_configuration_settles_what_the_model_leaves_open() -> None:
    config = settings(
        inputs={"any": {"datatype": "BYTES", "shape": [3, 8], "batch_dim": 1}, "x": {"shape": [8, 5, 2]}},
        outputs={"n": {"datatype": "INT64", "shape": [8]}, "y": {"batch_dim": 1}},
    )
    signature = signed(SAID, config)
    # The batch dimension is free, whatever was said of it; the model's order stays.
    assert [str(tensor) for tensor in signature.inputs.values()] == [
        "FP32 [-1, 5, 2]",
        "INT8 [-1, -1]",
        "BYTES [3, -1]",
    ]
    assert list(signature.outputs or ()) == ["y", "n"]
    assert (signature.outputs or {})["y"].free == (0,)
    assert signature.inputs["any"].row_shape == (3,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inputs": {"z": {}}}, "inputs: z: this model has any, m, x"),
        ({"outputs": {"z": {}}}, "outputs: z: this model has n, y"),
        ({"inputs": {"x": {"datatype": "FP64"}}}, "inputs.x: the model has FP32, and not FP64"),
        ({"inputs": {"x": {"shape": [-1, -1, 3]}}}, r"inputs.x: the model has \[-1, -1, 2\], and not \[-1, -1, 3\]"),
        ({"inputs": {"x": {"shape": [-1, 2]}}}, "inputs.x: the model has"),
        ({"inputs": {"x": {"batch_dim": 3}}}, r"inputs.x: shape \[-1, -1, 2\] has no dimension 3"),
        ({"outputs": {"y": {"batch_dim": 2}}}, "outputs.y: shape .* has no dimension 2"),
        ({"inputs": {"m": {"pad": {"mask": "x"}}}}, "inputs.m.pad.mask: x is FP32"),
        ({"inputs": {"x": {"pad": {"mask": "q"}}}}, "inputs.x.pad.mask: q must be another input"),
        ({"inputs": {"x": {"pad": {"mask": "x"}}}}, "inputs.x.pad.mask: x must be another input"),
        ({"inputs": {"x": {"shape": [-1, 5, 2], **PAD}}}, "inputs.x.pad: nothing is free"),
        ({"inputs": {"any": PAD}}, "inputs.any.pad: nothing is free"),
        ({"inputs": {"any": {"datatype": "BYTES", "shape": [-1, -1], **PAD}}}, "BYTES cannot be padded"),
        ({"inputs": {"any": {"shape": [-1, -1], **PAD}}}, "any datatype cannot be padded"),
        ({"inputs": {"x": {"pad": {"mask": "any"}}}}, "any is any datatype of any shape; a number for each"),
        ({"inputs": {"x": {"pad": {"mask": "m", "value": True}}}}, "inputs.x.pad.value: True is no FP32"),
        (
            {"inputs": {"any": {"datatype": "INT64", "shape": [-1, -1], "pad": {"mask": "m", "value": 0.5}}}},
            "0.5 is no",
        ),
        ({"inputs": {"any": {"datatype": "UINT8", "shape": [-1, -1], "pad": {"mask": "m", "value": -1}}}}, "-1 is no"),
        ({"inputs": {"any": {"datatype": "INT8", "shape": [-1, -1], "pad": {"mask": "m", "value": 128}}}}, "128 is no"),
        (
            {"inputs": {"any": {"datatype": "FP16", "shape": [-1, -1], "pad": {"mask": "m", "value": 1e6}}}},
            "is no FP16",
        ),
        (
            {"inputs": {"x": PAD, "any": {"datatype": "FP32", "shape": [-1, -1], **PAD}}},
            "m is the mask of x and of any",
        ),
        ({"outputs": {"y": {"follows": "x"}}}, "outputs.y.follows: x must be an input with a pad"),
        ({"inputs": {"x": PAD}, "outputs": {"y": {"shape": [-1, 4], "follows": "x"}}}, "not as many free dimensions"),
        ({"warm_up": [{"z": [1]}]}, "warm_up: z: this model has x, m, any"),
    ],
)
def test_configuration_that_the_model_contradicts_is_told_so(values: dict[str, Any], message: str) -> None:
    config = settings(**values)
    with pytest.raises(InvalidConfig, match=message):
        sample_rows(signed(SAID, config), config)


@pytest.mark.parametrize("row", [[5, 3], [5], [5, 2, 1]])
def test_warm_up_of_sizes_that_a_row_cannot_have_is_refused(row: list[int]) -> None:
    said = Said(SAID.inputs[:2])
    config = settings(warm_up=[{"x": row}])
    with pytest.raises(InvalidConfig, match=r"warm_up: x: a row is \[-1, 2\], and not"):
        sample_rows(signed(said, config), config)


def test_samples_are_rows_of_the_sizes_that_are_named() -> None:
    said = Said((*SAID.inputs[:2], Tensor("text", "BYTES", (3, -1)), Tensor("half", "BF16", (-1,))))
    config = settings(inputs={"x": PAD, "text": {"batch_dim": 1}}, warm_up=[{"x": [4, 2]}, {"x": [6, 2], "m": [6]}])
    rows = sample_rows(signed(said, config), config)
    assert [{name: array.shape for name, array in row.items()} for row in rows] == [
        {"x": (1, 4, 2), "text": (3, 1), "half": (1,)},
        {"x": (1, 6, 2), "m": (1, 6), "text": (3, 1), "half": (1,)},
    ]
    assert rows[0]["half"].dtype.name == "float32"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_batch_size": True}, "max_batch_size"),
        ({"inputs": {"x": {"datatype": "FLOAT"}}}, "inputs.x: datatype"),
        ({"inputs": {"x": {"shape": [-2]}}}, "inputs.x: shape"),
        ({"inputs": {"x": {"shape": []}}}, "inputs.x: shape"),
        ({"inputs": {"x": {"shape": [1.5]}}}, "inputs.x: shape"),
        ({"inputs": {"x": {"shape": [1] * 17}}}, "inputs.x: shape"),
        ({"inputs": {"x": {"batch_dim": -1}}}, "inputs.x: batch_dim"),
        ({"inputs": {"x": {"batchdim": 0}}}, "inputs.x: batchdim"),
        ({"inputs": {"x": {"pad": 0}}}, "a mapping of names"),
        ({"inputs": {"x": {"pad": {"value": 0}}}}, "mask"),
        ({"inputs": ["x"]}, "inputs"),
        ({"outputs": {"y": {"pad": {"mask": "m"}}}}, "outputs.y: pad"),
        ({"warm_up": [{"x": [-1]}]}, "warm_up"),
        ({"split_requests": "yes"}, "split_requests"),
        ({"precision": "int4"}, "precision"),
    ],
)
def test_setting_that_is_none_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        settings(**values)


def test_limits_follow_from_max_batch_size() -> None:
    assert settings().max_instances == settings().max_items == 64
    small = settings(max_batch_size=2)
    assert (small.max_items, small.max_instances) == (2, 2)
    split = settings(max_batch_size=2, split_requests=True, max_instances=100)
    assert (split.max_items, split.max_instances) == (2, 100)
    schedule = settings(max_batch_size=4, scheduling={"max_batch_items": 16}).scheduling
    assert schedule.max_batch_items == 4
