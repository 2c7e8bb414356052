"""Mistakes of clients of a model of tensors: 400 with the tensor's name, the expected and the received value."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino
import pytest
from onnx import TensorProto, helper

from handlers.tasks.tensors import TensorsHandler
from tests.handlers.tensor_models.models import (
    Body,
    as_json,
    ask,
    function,
    inference,
    inputs,
    instances,
    loaded,
    plainly,
)
from tests.tensor_files import onnx_file, staged

F32 = np.float32

MODEL = """
def infer(x, ids, text, seq, mask):
    return {"y": x, "n": ids}
"""
SETTINGS: dict[str, Any] = {
    "inputs": {
        "x": {"datatype": "FP32", "shape": [-1, 2]},
        "ids": {"datatype": "INT8", "shape": [-1]},
        "text": {"datatype": "BYTES", "shape": [-1, 1]},
        "seq": {"datatype": "FP64", "shape": [-1, -1], "pad": {"mask": "mask"}},
        "mask": {"datatype": "BOOL", "shape": [-1, -1]},
    },
    "max_request_items": 4,
}
ROW: dict[str, Any] = {"x": [1.0, 2.0], "ids": 3, "text": ["a"], "seq": [1.0, 2.0, 3.0]}
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "x": np.ones((2, 2), F32),
    "ids": np.ones(2, np.int8),
    "text": np.array([["a"], ["b"]], object),
    "seq": np.ones((2, 3)),
}


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> TensorsHandler:
    return function(tmp_path_factory.mktemp("mistakes") / "model", MODEL, **SETTINGS)


NESTED = "FP32 [2] is expected, nested as its shape is."
# A wrong value of one input in a row of JSON, and the error.
IN_ROWS: list[tuple[str, Any, str]] = [
    ("x", [1.0], "x: FP32 [-1, 2] is expected; FP32 [1, 1] was sent."),
    ("x", [[1], [2, 3]], f"x: {NESTED}"),
    ("x", [1, True], f"x: {NESTED}"),
    ("ids", 128, "ids: contains a value that INT8 cannot represent."),
    ("mask", [True], "mask: [3] positions a row are expected, as in seq."),
    ("z", [1], "z: the model has no such input; it has x, ids, text, seq, mask."),
]


@pytest.mark.parametrize(("name", "value", "message"), IN_ROWS)
def test_value_of_a_row_that_is_wrong_fails_its_row_alone(
    name: str, value: Any, message: str, handler: TensorsHandler
) -> None:
    wrong = {**ROW, name: value}
    one, several, next_one = plainly(handler, as_json(wrong), instances(ROW, wrong), instances(ROW))
    assert (one.status, one.body["type"]) == (400, "TensorMismatch" if name in ROW | {"mask": 0} else "InvalidBody")
    assert message in one.body["message"]
    assert several.body["predictions"] == [{"y": [1, 2], "n": 3}, {"error": one.body}]
    assert next_one.body["predictions"] == [{"y": [1, 2], "n": 3}]


def test_column_with_a_wrong_row_is_refused_whole(handler: TensorsHandler) -> None:
    for x in ([[1, 2], [3]], [[1, 2], None], [], 5, {"a": 1}):
        answer = ask(handler, inputs(**{**{name: [value] for name, value in ROW.items()}, "x": x}))
        assert (answer.status, answer.body["type"]) == (400, "TensorMismatch"), x
        assert answer.body["message"].startswith("x: FP32 [-1, 2] is expected")


# As arrays of two rows; None where there is none.
IN_ARRAYS: list[tuple[str, Any, str]] = [
    ("x", np.ones((2, 2)), "x: FP32 [-1, 2] is expected; FP64 [2, 2] was sent."),
    ("x", np.ones((3, 2), F32), "All inputs must have the same number of rows; x has 3, ids has 2"),
    ("mask", np.ones((2, 4), bool), "mask: [3] positions a row are expected, as in seq."),
    ("z", np.ones(2), "z: the model has no such input; it has x, ids, text, seq, mask."),
    ("seq", None, "seq: FP64 [-1, -1] is expected; nothing was sent."),
]


@pytest.mark.parametrize(("name", "array", "message"), IN_ARRAYS)
def test_array_that_is_wrong_fails_its_request_alone(
    name: str, array: Any, message: str, handler: TensorsHandler
) -> None:
    wrong = {key: value for key, value in {**ARRAYS, name: array}.items() if value is not None}
    sent = [inference(wrong), inference(wrong, True)]
    if array is None:
        sent += [(as_json({key: ROW[key] for key in wrong}), {}), (inputs(**{key: [ROW[key]] for key in wrong}), {})]
    for body, headers in sent:
        answer = ask(handler, body, headers)
        assert answer.status == 400
        assert message in str(answer.body)


NPY = {"body": {"content-type": "application/x-npy"}}
WHOLE: list[tuple[str, Body, dict[str, Any], int, str, str]] = [
    ("no rows", inference({n: a[:0] for n, a in ARRAYS.items()})[0], {}, 400, "", "The tensors have no rows."),
    ("bare row", instances([1, 2]), {}, 400, "", '{"x": ..., "ids": ..., "text": ..., "seq": ...}'),
    ("five rows", instances(*[ROW] * 5), {}, 400, "BatchTooLarge", "5 rows; batch-size must be <= 4 for 'model'."),
    ("option", as_json({"instances": [ROW], "top_k": 1}), {}, 400, "", "top_k: Unexpected"),
    ("deep", {"body": b'{"x":' + b"[" * 900 + b"]" * 900 + b"}"}, {}, 400, "TensorMismatch", "x: FP32 [2] is expected"),
    ("npy", {"body": b"\x93NUMPY"}, NPY, 415, "UnsupportedMedia", "The body is neither JSON nor an Open Inference"),
    ("text", {"body": "hello"}, {}, 415, "UnsupportedMedia", "The body is neither JSON nor an Open Inference request."),
    ("packed", {"body": b"x"}, {"Content-Encoding": "gzip"}, 415, "UnsupportedMedia", "Content-Encoding"),
]


@pytest.mark.parametrize("case", WHOLE, ids=[case[0] for case in WHOLE])
def test_request_that_is_wrong_as_a_whole_is_told_so(case: Any, handler: TensorsHandler) -> None:
    _, body, headers, status, kind, message = case
    wrong, good = ask(handler, body, headers), ask(handler, as_json(ROW))
    assert wrong.status == status
    assert message in json.dumps(wrong.body).replace('\\"', '"')
    assert not kind or wrong.body["type"] == kind
    assert good.body == {"y": [1, 2], "n": 3}


@pytest.mark.builds
def test_whole_number_that_openvino_would_compute_otherwise_or_has_no_place_for_fails_its_row_alone(
    tmp_path: Path,
) -> None:
    whole, mod = (TensorProto.INT64, ["rows"]), helper.make_node("Mod", ["user", "thousand"], ["bucket"])
    path = onnx_file(
        tmp_path / "m.onnx",
        [mod, helper.make_node("Gather", ["table", "at"], ["y"])],
        {"user": whole, "at": whole},
        {"bucket": whole, "y": (TensorProto.FLOAT, ["rows"])},
        {"thousand": np.array([1000]), "table": np.arange(10, dtype=np.float32)},
    )
    # Of the file itself, ONNX Runtime would run it.
    openvino.save_model(openvino.convert_model(path), tmp_path / "m.xml")
    handler = loaded(staged(tmp_path / "m.xml"), {})
    run = onnxruntime.InferenceSession(str(path)).run
    rows = [(2**24, 9), (5, -10), (123456789, 0), (7, 10), (-7, -11)]
    answers = plainly(handler, *(instances({"user": user, "at": at}) for user, at in rows))
    for (user, at), answer in zip(rows[:2], answers, strict=False):
        bucket, y = run(None, {"user": np.array([user]), "at": np.array([at])})
        assert answer.body == {"predictions": [{"bucket": bucket[0], "y": y[0]}]}
    for name, answer in zip(("user", "at", "at"), answers[2:], strict=True):
        (error,) = answer.body["predictions"]
        assert f"{name}: the model computes with whole numbers from " in error["error"]["message"]
