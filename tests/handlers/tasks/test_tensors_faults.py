"""Faults of a model of tensors, by which only the faulty row fails, and clients' mistakes, which are told by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from onnx.reference import ReferenceEvaluator

from handlers.tasks.tensors import TensorsHandler
from tests.handlers.tensor_models import models
from tests.handlers.tensor_models.models import answers, as_json, ask, columns, function, inference, inputs, instances
from tests.tensor_files import staged, write_onnx

# A row of 666 is faulty, in a different way for each model; all others are doubled.
POISON: dict[str, tuple[str, str, str]] = {
    "exception": ("raise ValueError('quotes', x)", "InternalError", "The model failed on this input; the server's log"),
    "exit": ("raise SystemExit", "InternalError", "The model failed on this input; the server's log has the place."),
    "too many rows": ("return {'y': np.repeat(y, 2)}", "WrongOutput", "y: 2 rows were returned for 1."),
    "missing": ("return {'z': y}", "WrongOutput", "y: the model did not return it."),
    "array": ("return y", "WrongOutput", "The model returned a ndarray; arrays by name"),
    "datatype": ("return {'y': y.astype('f8')}", "WrongOutput", "y: FP64 was returned; FP32 is expected."),
    "objects": ("return {'y': np.array([{}])}", "WrongOutput", "y: objects other than str and bytes were"),
    "shape": ("return {'y': np.stack([y, y], 1)}", "WrongOutput", "y: rows of [2] were returned; [] is expected."),
    "memory": ("raise MemoryError", "OutOfMemory", "The model ran out of memory on this single input."),
}
NUMBER = {"datatype": "FP32", "shape": [-1]}
DECLARED: dict[str, Any] = {"inputs": {"x": NUMBER}, "outputs": {"y": NUMBER}}


def poisoned(what: str) -> str:
    return f"def infer(x):\n    y = x * 2\n    if 666 in x:\n        {POISON[what][0]}\n    return {{'y': y}}\n"


MODES = [*((what, {}) for what in POISON), ("exception", models.ADAPTIVE), ("memory", models.ADAPTIVE)]


@pytest.mark.parametrize(("what", "mode"), MODES)
def test_row_at_fault_fails_alone_and_says_why(what: str, mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, poisoned(what), **DECLARED, **mode)
    _, kind, message = POISON[what]
    code = 507 if kind == "OutOfMemory" else 500
    bodies = (instances(1, 2), as_json({"x": 666}), instances(3, 666, 5), inputs(x=[7, 666]), instances(4))
    x = {"x": np.array([1, 666, 3], np.float32)}
    sent = [*((body, {}) for body in bodies), inference(x), inference(x, True)]
    good, alone, mixed, third, last, *tensors = answers(handler, sent)
    assert (good.body, last.body) == ({"predictions": [2, 4]}, {"predictions": [8]})
    assert (alone.status, alone.body["type"], alone.body["code"]) == (code, kind, code)
    assert message in alone.body["message"] and "666" not in str(alone.body)
    assert mixed.body["predictions"] == [6, {"error": alone.body}, 10]
    assert (third.status, third.body) == (200, {"outputs": {"y": [14, None]}, "errors": [None, alone.body]})
    for arrays in map(columns, tensors):
        np.testing.assert_array_equal(arrays["y"], np.array([2, np.nan, 6], np.float32))
        assert [text and json.loads(text) for text in arrays["error"].tolist()] == ["", alone.body, ""]


def test_numbers_that_json_has_not_are_null_in_it_and_themselves_elsewhere(tmp_path: Path) -> None:
    handler = function(tmp_path, "def infer(x):\n    return {'y': np.full((1, 2), [-np.inf, np.nan])}\n")
    row, rows, table = models.plainly(handler, as_json({"x": [0, 0]}), instances([0, 0]), inputs(x=[[0, 0]]))
    wanted = [{"y": [None, None]}, {"predictions": [[None, None]]}, {"outputs": {"y": [[None, None]]}}]
    assert [row.body, rows.body, table.body] == wanted
    x = np.zeros((1, 2))
    assert ask(handler, *inference({"x": x})).body["outputs"][0]["data"] == [None, None]
    np.testing.assert_array_equal(columns(ask(handler, *inference({"x": x}, True)))["y"], [[-np.inf, np.nan]])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_row_with_nan_or_infinity_is_rejected_alone_unless_the_archive_allows_it(wrong: float, tmp_path: Path) -> None:
    for allowed in (False, True):
        folder = tmp_path / str(allowed)
        handler = function(folder, "def infer(x):\n    return {'y': np.maximum(x, 0)}\n", allow_non_finite=allowed)
        answer = ask(handler, *inference({"x": np.array([1, wrong, 3], np.float32)}, True))
        y, errors = columns(answer)["y"], columns(answer).get("error", ["", "", ""])
        np.testing.assert_array_equal(y, np.maximum([1, wrong if allowed else np.nan, 3], 0))
        assert ["NonFiniteInput" in each for each in errors] == [False, not allowed, False]


# A client's mistakes are 400 with the tensor's name, the expected and the received value.
F32 = np.float32
MODEL = """
def infer(x, ids, text, seq, mask):
    return {"y": x, "n": ids}
"""
SETTINGS: dict[str, Any] = {
    "inputs": {
        **{"x": {"datatype": "FP32", "shape": [-1, 2]}, "ids": {"datatype": "INT8", "shape": [-1]}},
        "text": {"datatype": "BYTES", "shape": [-1, 1]},
        "seq": {"datatype": "FP64", "shape": [-1, -1], "pad": {"mask": "mask"}},
        "mask": {"datatype": "BOOL", "shape": [-1, -1]},
    },
    "max_request_items": 4,
}
ROW: dict[str, Any] = {"x": [1.0, 2.0], "ids": 3, "text": ["a"], "seq": [1.0, 2.0, 3.0]}
ARRAYS: dict[str, np.ndarray[Any, Any]] = {"x": np.ones((2, 2), F32), "ids": np.ones(2, np.int8)}
ARRAYS |= {"text": np.array([["a"], ["b"]], object), "seq": np.ones((2, 3))}


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> TensorsHandler:
    return function(tmp_path_factory.mktemp("mistakes") / "model", MODEL, **SETTINGS)


NESTED = "FP32 [2] is expected, nested as its shape is."
IN_ROWS: list[tuple[str, Any, str]] = [
    ("x", [1.0], "x: FP32 [-1, 2] is expected; FP32 [1, 1] was sent."),
    *(("x", [[1], [2, 3]], f"x: {NESTED}"), ("x", [1, True], f"x: {NESTED}")),
    ("ids", 128, "ids: contains a value that INT8 cannot represent."),
    ("mask", [True], "mask: [3] positions a row are expected, as in seq."),
    ("z", [1], "z: the model has no such input; it has x, ids, text, seq, mask."),
]


@pytest.mark.parametrize(("name", "value", "message"), IN_ROWS)
def test_wrong_value_in_a_row_fails_its_row_alone(name: str, value: Any, message: str, handler: TensorsHandler) -> None:
    wrong = {**ROW, name: value}
    one, several, next_one = models.plainly(handler, as_json(wrong), instances(ROW, wrong), instances(ROW))
    assert (one.status, one.body["type"]) == (400, "TensorMismatch" if name in ROW | {"mask": 0} else "InvalidBody")
    assert message in one.body["message"]
    assert several.body["predictions"] == [{"y": [1, 2], "n": 3}, {"error": one.body}]
    assert next_one.body["predictions"] == [{"y": [1, 2], "n": 3}]


def test_column_with_a_wrong_row_is_rejected_whole(handler: TensorsHandler) -> None:
    for x in ([[1, 2], [3]], [[1, 2], None], [], 5, {"a": 1}):
        answer = ask(handler, inputs(**{**{name: [value] for name, value in ROW.items()}, "x": x}))
        assert (answer.status, answer.body["type"]) == (400, "TensorMismatch"), x
        assert answer.body["message"].startswith("x: FP32 [-1, 2] is expected")


IN_ARRAYS: list[tuple[str, Any, str]] = [
    ("x", np.ones((2, 2)), "x: FP32 [-1, 2] is expected; FP64 [2, 2] was sent."),
    ("x", np.ones((3, 2), F32), "All inputs must have the same number of rows; x has 3, ids has 2"),
    ("mask", np.ones((2, 4), bool), "mask: [3] positions a row are expected, as in seq."),
    ("z", np.ones(2), "z: the model has no such input; it has x, ids, text, seq, mask."),
]


NPY = {"body": {"content-type": "application/x-npy"}}
ROW_WITHOUT, ARRAYS_WITHOUT = ({name: each for name, each in all_.items() if name != "seq"} for all_ in (ROW, ARRAYS))
WITHOUT: tuple[Any, ...] = (inference(ARRAYS_WITHOUT), inference(ARRAYS_WITHOUT, True), (as_json(ROW_WITHOUT), {}))
WHOLE: list[tuple[models.Body, dict[str, Any], int, str, str]] = [
    (inference({n: a[:0] for n, a in ARRAYS.items()})[0], {}, 400, "", "The tensors have no rows."),
    (instances([1, 2]), {}, 400, "", '{"x": ..., "ids": ..., "text": ..., "seq": ...}'),
    (instances(*[ROW] * 5), {}, 400, "BatchTooLarge", "5 rows; batch-size must be <= 4 for 'model'."),
    (as_json({"instances": [ROW], "top_k": 1}), {}, 400, "", "top_k: Unexpected"),
    ({"body": b'{"x":' + b"[" * 900 + b"]" * 900 + b"}"}, {}, 400, "TensorMismatch", "x: FP32 [2] is expected"),
    ({"body": b"\x93NUMPY"}, NPY, 415, "UnsupportedMedia", "The body is neither JSON nor an Open Inference"),
    ({"body": "hello"}, {}, 415, "UnsupportedMedia", "The body is neither JSON nor an Open Inference request."),
    ({"body": b"x"}, {"Content-Encoding": "gzip"}, 415, "UnsupportedMedia", "Content-Encoding"),
    *(
        (*inference({**ARRAYS, name: array}, is_binary), 400, "", message)
        for name, array, message in IN_ARRAYS
        for is_binary in (False, True)
    ),
    *((*each, 400, "", "seq: FP64 [-1, -1] is expected; nothing was sent.") for each in WITHOUT),
    (inputs(**{name: [each] for name, each in ROW_WITHOUT.items()}), {}, 400, "", "seq: FP64 [-1, -1] is expected;"),
]


@pytest.mark.parametrize("case", WHOLE)
def test_request_that_is_wrong_as_a_whole_is_told_so(case: Any, handler: TensorsHandler) -> None:
    body, headers, status, kind, message = case
    wrong, good = ask(handler, body, headers), ask(handler, as_json(ROW))
    assert wrong.status == status
    assert message in json.dumps(wrong.body).replace('\\"', '"')
    assert not kind or wrong.body["type"] == kind
    assert good.body == {"y": [1, 2], "n": 3}


@pytest.mark.builds
def test_whole_number_that_openvino_computes_otherwise_or_has_no_place_for_fails_its_row_alone(tmp_path: Path) -> None:
    """OpenVINO computes INT64 in 32 bits: without the check, 2**40 + 3 doubled is 6."""
    names, table = ("user", "at", "x"), "int64 thousand = {1000}, int64 two = {2}, float[3] table = {0, 1, 2}"
    taken, given = (", ".join(f"int64[n] {each}" for each in group) for group in (names, ("bucket", "doubled")))
    nodes = "bucket = Mod (user, thousand) doubled = Mul (x, two) y = Gather (table, at)"
    path = write_onnx(tmp_path / "m.onnx", f"({taken}) => ({given}, float[n] y) <{table}> {{ {nodes} }}")
    # Of the file itself, ONNX Runtime would run it.
    openvino.save_model(openvino.convert_model(path), tmp_path / "m.xml")
    handler = models.loaded(staged(tmp_path / "m.xml"), {})
    run, good = ReferenceEvaluator(str(path)).run, [(2**24, 2, 2**30 - 1), (5, -3, -(2**30))]
    within = "the model computes with whole numbers from "
    beyond = "x: contains a value that INT32, the engine's datatype, cannot represent."
    bad = {(123456789, 0, 1): f"user: {within}", (7, 3, 1): f"at: {within}", (-7, -4, 1): f"at: {within}"}
    bad |= dict.fromkeys(((1, 1, 2**40 + 3), (1, 1, -(2**31) - 1)), beyond)
    answer = ask(handler, instances(*(dict(zip(names, row, strict=True)) for row in (*good, *bad))))
    for row, prediction in zip((*good, *bad), answer.body["predictions"], strict=True):
        sent = {name: np.array([value]) for name, value in zip(names, row, strict=True)}
        if row in bad:
            assert prediction["error"]["message"].startswith(bad[row])
        else:
            assert [*prediction.values()] == [each[0] for each in run([*prediction], sent)]
    whole_request = ask(handler, *inference(sent))
    assert (whole_request.status, whole_request.body) == (400, {"error": beyond})
