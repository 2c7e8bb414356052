"""What clients send by mistake to a model of tensors: 400 with the tensor's name, what is expected, what was sent."""

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from handlers.tasks.tensors import TensorsHandler
from handlers.tensor_models.files import NPY, NPZ
from handlers.tensor_models.signature import Said, Tensor
from tests.handlers.tensor_models.models import (
    ACCEPT_NPY,
    Body,
    as_json,
    ask,
    function,
    graph,
    inference,
    inputs,
    instances,
    npy,
    npz,
    plainly,
)

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
    "max_batch_size": 4,
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


class Mistake(NamedTuple):
    """What one input is instead, and what its client hears."""

    name: str
    value: Any
    type: str
    message: str


# In a row of JSON.
IN_ROWS = [
    Mistake("x", [1.0], "TensorMismatch", "x: FP32 [-1, 2] is expected; FP32 [1, 1] was sent."),
    Mistake("x", [[1.0, 2.0]], "TensorMismatch", "x: FP32 [2] is expected; [1, 2] was sent."),
    Mistake("x", 1.0, "TensorMismatch", "x: FP32 [2] is expected; [] was sent."),
    Mistake("x", [1.0, [2.0]], "TensorMismatch", "x: FP32 [2] is expected, nested as its shape is."),
    Mistake("x", ["1", "2"], "TensorMismatch", "x: FP32 [2] is expected, nested as its shape is."),
    Mistake("x", [None, 1], "TensorMismatch", "x: FP32 [2] is expected, nested as its shape is."),
    Mistake("x", [True, False], "TensorMismatch", "x: FP32 [2] is expected, nested as its shape is."),
    Mistake("x", {"b64": "AA=="}, "TensorMismatch", "x: FP32 [2] is expected, nested as its shape is."),
    Mistake("x", [1e39, 0], "TensorMismatch", "x: there is a number that FP32 has not."),
    Mistake("x", [], "TensorMismatch", "x: FP32 [-1, 2] is expected; FP32 [1, 0] was sent."),
    Mistake("ids", 1.0, "TensorMismatch", "ids: INT8 [] is expected, nested as its shape is."),
    Mistake("ids", True, "TensorMismatch", "ids: INT8 [] is expected, nested as its shape is."),
    Mistake("ids", 128, "TensorMismatch", "ids: there is a number that INT8 has not."),
    Mistake("ids", 2**63, "TensorMismatch", "ids: there is a number that INT8 has not."),
    Mistake("ids", "3", "TensorMismatch", "ids: INT8 [] is expected, nested as its shape is."),
    Mistake("text", [1], "TensorMismatch", "text: BYTES [1] is expected, nested as its shape is."),
    Mistake("text", "a", "TensorMismatch", "text: BYTES [1] is expected; [] was sent."),
    Mistake("mask", [True], "TensorMismatch", "mask: it must have [3] positions a row, as seq has."),
    Mistake("mask", [1, 1, 1], "TensorMismatch", "mask: BOOL [-1] is expected, nested as its shape is."),
    Mistake("z", [1], "UnknownShape", "z: the model has no such input; it has x, ids, text, seq, mask."),
    Mistake("x" * 60, [1], "UnknownShape", "a name of 60 characters: the model has no such input"),
]


@pytest.mark.parametrize("mistake", IN_ROWS, ids=[f"{each.name[:5]} {str(each.value)[:20]}" for each in IN_ROWS])
def test_value_of_a_row_that_is_wrong_fails_its_row_alone(mistake: Mistake, handler: TensorsHandler) -> None:
    wrong = {**ROW, mistake.name: mistake.value}
    one, several, next_one = plainly(handler, as_json(wrong), instances(ROW, wrong), instances(ROW))
    assert (one.status, one.body["type"]) == (400, mistake.type)
    assert mistake.message in one.body["message"]
    assert several.body["predictions"] == [{"y": [1, 2], "n": 3}, {"error": one.body}]
    assert next_one.body["predictions"] == [{"y": [1, 2], "n": 3}]


@pytest.mark.parametrize("name", ["x", "ids", "text", "seq"])
def test_input_that_is_missing_is_named_in_every_form(name: str, handler: TensorsHandler) -> None:
    row = {key: value for key, value in ROW.items() if key != name}
    arrays = {key: array for key, array in ARRAYS.items() if key != name}
    sent = [
        (as_json(row), {}),
        (inputs(**{key: [value] for key, value in row.items()}), {}),
        inference(arrays),
        inference(arrays, is_binary=True),
        (npz(**{key: array.astype("U") if array.dtype == object else array for key, array in arrays.items()}), {}),
    ]
    for body, headers in sent:
        answer = ask(handler, body, headers)
        assert answer.status == 400
        message = answer.body["error"] if set(answer.body) == {"error"} else answer.body["message"]
        assert message.startswith(f"{name}: ")
        assert message.endswith(" is expected; nothing was sent.")


# As arrays of two rows.
IN_ARRAYS = [
    Mistake("x", np.ones((2, 2)), "TensorMismatch", "x: FP32 [-1, 2] is expected; FP64 [2, 2] was sent."),
    Mistake("x", np.ones((2, 3), F32), "TensorMismatch", "x: FP32 [-1, 2] is expected; FP32 [2, 3] was sent."),
    Mistake("x", np.ones((2,), F32), "TensorMismatch", "x: FP32 [-1, 2] is expected; FP32 [2] was sent."),
    Mistake("x", np.ones((2, 2, 1), F32), "TensorMismatch", "x: FP32 [-1, 2] is expected; FP32 [2, 2, 1] was sent."),
    Mistake("x", np.array(1, F32), "TensorMismatch", "x: FP32 [-1, 2] is expected; FP32 [] was sent."),
    Mistake(
        "x", np.ones((3, 2), F32), "UnknownShape", "All inputs must have the same number of rows; x has 3, ids has 2"
    ),
    Mistake("ids", np.ones(2, np.uint8), "TensorMismatch", "ids: INT8 [-1] is expected; UINT8 [2] was sent."),
    Mistake("ids", np.ones(2, bool), "TensorMismatch", "ids: INT8 [-1] is expected; BOOL [2] was sent."),
    Mistake("text", np.ones((2, 1)), "TensorMismatch", "text: BYTES [-1, 1] is expected; FP64 [2, 1] was sent."),
    Mistake("mask", np.ones((2, 4), bool), "TensorMismatch", "mask: it must have [3] positions a row, as seq has."),
    Mistake("z", np.ones(2), "UnknownShape", "z: the model has no such input; it has x, ids, text, seq, mask."),
]


@pytest.mark.parametrize(
    "mistake", IN_ARRAYS, ids=[f"{each.name} {each.value.dtype} {each.value.shape}" for each in IN_ARRAYS]
)
def test_array_that_is_wrong_fails_its_request_alone(mistake: Mistake, handler: TensorsHandler) -> None:
    wrong = {**ARRAYS, mistake.name: mistake.value}
    file = {name: array.astype("U") if array.dtype == object else array for name, array in wrong.items()}
    for body, headers in (inference(wrong), inference(wrong, is_binary=True), (npz(**file), {})):
        answer = ask(handler, body, headers)
        assert answer.status == 400
        assert mistake.message in str(answer.body)
        if "type" in answer.body:
            assert answer.body["type"] == mistake.type


def cut(body: Body) -> Body:
    return {"body": body["body"][:-1]}


WHOLE: list[tuple[str, Body, dict[str, Any], int, str, str]] = [
    ("no rows", inference({n: a[:0] for n, a in ARRAYS.items()})[0], {}, 400, "", "The tensors have no rows."),
    ("no instances", instances(), {}, 400, "EmptyInput", '"instances" is empty.'),
    ("instances of nothing", as_json({"instances": 3}), {}, 400, "UnknownShape", '"instances" must be a list.'),
    ("bare row", instances([1, 2]), {}, 400, "", '{"x": ..., "ids": ..., "text": ..., "seq": ...}'),
    ("list", {"body": b"[1]"}, {"body": {"content-type": "application/json"}}, 400, "UnknownShape", "JSON must be"),
    ("empty row", instances({}), {}, 400, "", "JSON must be"),
    ("empty columns", inputs(), {}, 400, "UnknownShape", "JSON must be"),
    ("five rows", instances(*[ROW] * 5), {}, 400, "BatchTooLarge", "5 rows; batch-size must be <= 4 for 'model'."),
    ("option", as_json({"instances": [ROW], "top_k": 1}), {}, 400, "", "top_k: Unexpected"),
    ("no json", {"body": b'{"x": [1,'}, {"body": {"content-type": "application/json"}}, 400, "MalformedJson", "JSON"),
    ("nan", {"body": b'{"x": NaN}'}, {"body": {"content-type": "application/json"}}, 400, "MalformedJson", "JSON"),
    ("deep", {"body": b'{"x":' + b"[" * 900 + b"]" * 900 + b"}"}, {}, 400, "TensorMismatch", "x: FP32 [2] is expected"),
    ("npy for four", npy(ARRAYS["x"]), {}, 400, "UnknownShape", "a .npz file holds several"),
    ("no npz", {"body": b"x"}, {"body": {"content-type": NPZ}}, 400, "MalformedTensor", "no .npz file"),
    ("something", {"body": b"\xff\xd8\xff"}, {}, 415, "UnsupportedMedia", "neither JSON, .npy, .npz"),
    ("text", {"body": "hello"}, {}, 415, "UnsupportedMedia", "The body is text"),
    ("nothing", {"body": b""}, {}, 400, "EmptyInput", "empty"),
    ("packed", npz(x=ARRAYS["x"]), {"Content-Encoding": "gzip"}, 415, "UnsupportedMedia", "Content-Encoding"),
]


@pytest.mark.parametrize("case", WHOLE, ids=[case[0] for case in WHOLE])
def test_request_that_is_wrong_as_a_whole_is_told_so(case: Any, handler: TensorsHandler) -> None:
    _, body, headers, status, kind, message = case
    wrong, good = ask(handler, body, headers), ask(handler, as_json(ROW))
    assert wrong.status == status
    assert message in json.dumps(wrong.body).replace('\\"', '"')
    assert not kind or wrong.body["type"] == kind
    assert good.body == {"y": [1, 2], "n": 3}


ONE = "def infer(image):\n    return {'a': image, 'b': image}\n"


def test_file_of_one_array_is_held_against_the_signature(tmp_path: Path) -> None:
    handler = function(tmp_path, ONE, inputs={"image": {"datatype": "FP32", "shape": [-1, 1, 2, 2]}})
    wrong = ask(handler, npy(np.ones((2, 2, 2))))
    assert (wrong.status, wrong.body["type"]) == (400, "TensorMismatch")
    assert wrong.body["message"] == "image: FP32 [-1, 1, 2, 2] is expected; FP64 [2, 2, 2] was sent."
    good = np.ones((1, 1, 2, 2), F32)
    assert ask(handler, npy(good)).status == 200
    two = ask(handler, npy(good), ACCEPT_NPY)
    assert (two.status, two.body["type"]) == (406, "NotAcceptable")
    for broken in (cut(npy(good)), {"body": npy(good)["body"] + b"x"}, {"body": b"\x93NUMPY"}):
        assert ask(handler, broken).body["type"] == "MalformedTensor"
    typed = ask(handler, {"body": b"no file"}, {"body": {"content-type": NPY}})
    assert (typed.status, typed.body["type"]) == (400, "MalformedTensor")


def test_names_that_an_owner_gave_are_those_of_messages(tmp_path: Path) -> None:
    names = {"inputs": {"x": "INPUT", "m": "MASK"}, "outputs": {"y": "OUTPUT"}}
    handler = function(
        tmp_path,
        "def infer(x, m):\n    return {'y': x if 6 not in x else x.astype(int)}\n",
        inputs={
            "x": {"datatype": "FP32", "shape": [-1, -1], "pad": {"mask": "m"}},
            "m": {"datatype": "BOOL", "shape": [-1, -1]},
        },
        tensors=names,
    )
    for row, message in (
        ({"INPUT": ["a"]}, "INPUT: FP32 [-1] is expected"),
        ({"INPUT": [[1]]}, "INPUT: FP32 [-1] is expected; [1, 1]"),
        ({"INPUT": [1e40]}, "INPUT: there is a number"),
        ({"INPUT": [1.0], "MASK": [True, True]}, "MASK: it must have [1] positions a row, as INPUT has."),
        ({"x": [1.0]}, "x: the model has no such input; it has INPUT, MASK."),
        ({"MASK": [True]}, "INPUT: FP32 [-1, -1] is expected; nothing was sent."),
        ({"INPUT": [6.0]}, "OUTPUT: INT64 came back; FP32 is expected."),
    ):
        assert message in ask(handler, as_json(row)).body["message"]
    assert ask(handler, as_json({"INPUT": [1, 2]})).body == {"OUTPUT": [1.0, 2.0]}


def test_text_with_a_lone_surrogate_is_its_clients_mistake(tmp_path: Path) -> None:
    handler = function(tmp_path, ONE)
    file = io.BytesIO()
    np.save(file, np.array(["\ud800"]))
    # TorchServe's own parser of JSON, which decode_input_request turns on, lets them through.
    parsed = {"body": {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["\ud800"]}]}}
    for body in (
        {"body": file.getvalue()},
        parsed,
        {"body": {"image": "\ud800"}},
        {"body": {"inputs": {"image": ["\ud800"]}}},
    ):
        answer = ask(handler, body)
        assert answer.status == 400
        assert "image: there is text with a lone surrogate" in str(answer.body)


def test_column_with_a_wrong_row_is_refused_whole(handler: TensorsHandler) -> None:
    for x in ([[1, 2], [3]], [[1, 2], 3], [[1, 2], None], [], 5, {"a": 1}, "ab"):
        answer = ask(handler, inputs(**{**{name: [value] for name, value in ROW.items()}, "x": x}))
        assert (answer.status, answer.body["type"]) == (400, "TensorMismatch"), x
        assert answer.body["message"].startswith("x: FP32 [-1, 2] is expected")


def test_whole_number_that_the_engine_would_cut_off_is_refused_and_its_like_is_not(tmp_path: Path) -> None:
    """OpenVINO computes INT64 in 32 bits: without the check, 2**40 + 3 doubled is 6."""
    shape = ("rows", 1)
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, shape) for name in "xy")
    added = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "doubled", [x], [y])
    model = onnx.helper.make_model(added, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    said = Said((Tensor("x", "INT64", (-1, 1)),), (Tensor("y", "INT64", (-1, 1)),))
    handler = graph(tmp_path, model, said)
    wrong = ask(handler, *inference({"x": np.array([[2**40 + 3]])}))
    right = ask(handler, *inference({"x": np.array([[2**30 - 1]])}))
    row = ask(handler, instances({"x": [-(2**31) - 1]}, {"x": [-(2**30)]}))
    message = "x: there is a number beyond INT32, which the engine computes in."
    assert (wrong.status, wrong.body["error"]) == (400, message)
    assert right.body["outputs"][0]["data"] == [2**31 - 2]
    assert row.body["predictions"][0]["error"]["message"] == message
    assert row.body["predictions"][1] == [-(2**31)]
