"""What a model of tensors gives beside its signature, and what it cannot run: only the row at fault fails."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.tensor_models.models import (
    ACCEPT_NPY,
    ACCEPT_NPZ,
    ADAPTIVE,
    answers,
    as_json,
    ask,
    columns,
    function,
    in_both_modes,
    inference,
    inputs,
    instances,
    npy,
    plainly,
    unzipped,
)

# A row of 666 is at fault, in a way of its own; all others are doubled.
POISON: dict[str, tuple[str, str, str]] = {
    "exception": ("raise ValueError('quotes', x)", "InternalError", "The model failed on this input; the server's log"),
    "exit": ("raise SystemExit", "InternalError", "The model failed on this input; the server's log says where."),
    "too few rows": ("return {'y': y[:-1]}", "WrongOutput", "y: 0 rows came back for 1."),
    "too many rows": ("return {'y': np.repeat(y, 2)}", "WrongOutput", "y: 2 rows came back for 1."),
    "no rows": ("return {'y': np.array(y.sum())}", "WrongOutput", "y: no rows came back for 1."),
    "missing": ("return {'z': y}", "WrongOutput", "y: the model gave none."),
    "nothing": ("return {}", "WrongOutput", "A dict came back; arrays by name are needed."),
    "none": ("return None", "WrongOutput", "A NoneType came back; arrays by name are needed."),
    "array": ("return y", "WrongOutput", "A ndarray came back; arrays by name are needed."),
    "list": ("return {'y': y.tolist()}", "WrongOutput", "y: a list came back; an array is needed."),
    "datatype": ("return {'y': y.astype(np.float64)}", "WrongOutput", "y: FP64 came back; FP32 is expected."),
    "complex": (
        "return {'y': y.astype(complex)}",
        "WrongOutput",
        "y: complex128 came back, which no datatype of the protocol is.",
    ),
    "objects": (
        "return {'y': np.array([{}] * len(x))}",
        "WrongOutput",
        "y: objects other than str and bytes came back.",
    ),
    "text": ("return {'y': np.array(['a'] * len(x))}", "WrongOutput", "y: BYTES came back; FP32 is expected."),
    "shape": ("return {'y': np.stack([y, y], 1)}", "WrongOutput", "y: rows of [2] came back; [] is expected."),
    "memory": ("raise MemoryError", "OutOfMemory", "The model ran out of memory on this input alone."),
}


def poisoned(what: str) -> str:
    return f"def infer(x):\n    y = x * 2\n    if 666 in x:\n        {POISON[what][0]}\n    return {{'y': y}}\n"


DECLARED: dict[str, Any] = {
    "inputs": {"x": {"datatype": "FP32", "shape": [-1]}},
    "outputs": {"y": {"datatype": "FP32", "shape": [-1]}},
}


@in_both_modes
@pytest.mark.parametrize("what", POISON)
def test_row_at_fault_fails_alone_and_says_why(what: str, mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, poisoned(what), **DECLARED, **mode)
    _, kind, message = POISON[what]
    code = 507 if kind == "OutOfMemory" else 500
    good, alone, mixed, third, last = plainly(
        handler, instances(1, 2), as_json({"x": 666}), instances(3, 666, 5), inputs(x=[7, 666]), instances(4)
    )
    assert (good.body, last.body) == ({"predictions": [2, 4]}, {"predictions": [8]})
    assert (alone.status, alone.body["type"], alone.body["code"]) == (code, kind, code)
    assert message in alone.body["message"]
    assert "666" not in str(alone.body)
    assert [prediction for prediction in mixed.body["predictions"] if not isinstance(prediction, dict)] == [6, 10]
    assert mixed.body["predictions"][1] == {"error": alone.body}
    assert (third.status, third.body) == (200, {"outputs": {"y": [14, None]}, "errors": [None, alone.body]})


def test_failed_rows_have_their_place_in_every_form(tmp_path: Path) -> None:
    handler = function(tmp_path, poisoned("datatype"), **DECLARED)
    x = np.array([1, 666, 3], np.float32)
    in_json, in_binary, in_npz, in_npy = answers(
        handler,
        [
            inference({"x": x}),
            inference({"x": x}, is_binary=True),
            (npy(x), ACCEPT_NPZ),
            (npy(x), ACCEPT_NPY),
        ],
    )
    for arrays in (columns(in_json), columns(in_binary), unzipped(in_npz)):
        np.testing.assert_array_equal(arrays["y"], np.array([2, np.nan, 6], np.float32))
        errors = [each if isinstance(each, str) else each.decode() for each in arrays["error"].tolist()]
        assert errors[::2] == ["", ""]
        assert "FP64 came back" in errors[1]
    assert (in_npy.status, in_npy.body["type"]) == (500, "WrongOutput")


CAPACITY = """
def infer(x):
    if len(x) > 2:
        raise MemoryError
    return {"y": x, "rows": np.full(len(x), len(x))}
"""


@in_both_modes
def test_micro_batch_that_memory_has_no_room_for_is_halved(mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, CAPACITY, max_batch_size=8, **mode)
    (answer,) = plainly(handler, instances(*range(8)))
    assert [row["y"] for row in answer.body["predictions"]] == list(range(8))
    assert {row["rows"] for row in answer.body["predictions"]} <= {1, 2}


# Undeclared, and not the same for every row: nothing can be said against each alone.
MOODS = """
def infer(x):
    if (x < 0).any():
        return {"negative": x}
    if (x > 9).any():
        return {"y": x.astype(np.int64)}
    return {"y": x}
"""


def test_undeclared_outputs_of_one_answer_must_fit_together(tmp_path: Path) -> None:
    handler = function(tmp_path, MOODS, max_items=1)
    apart, together, mixed, file = answers(
        handler,
        [
            (instances(1.0, -2.0), {}),
            (inputs(x=[1.0, -2.0]), {}),
            inference({"x": np.array([1.5, 10])}),
            (npy(np.array([1.5, 10])), ACCEPT_NPY),
        ],
    )
    assert apart.body == {"predictions": [1.0, -2.0]}
    assert (together.status, together.body["type"]) == (500, "WrongOutput")
    assert together.body["message"] == "The rows have not all the same outputs, and cannot stand in one answer."
    for answer in (mixed, file):
        assert answer.status == 500
        assert "y: the rows are of different datatypes" in str(answer.body)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("{'error': x}", "error: the name is taken, by the errors of rows."),
        ("{1: x}", "An output is named 1; a text is needed."),
        ("{'': x}", "An output is named ''; a text is needed."),
    ],
)
def test_undeclared_output_that_has_no_name_of_its_own_is_wrong(names: str, message: str, tmp_path: Path) -> None:
    handler = function(tmp_path, f"def infer(x):\n    return {names}\n")
    for answer in answers(handler, [(instances(1), {}), inference({"x": np.ones(1)})]):
        assert answer.status == 500
        assert message in str(answer.body)


@pytest.mark.parametrize(
    "values",
    [
        "np.ma.masked_array(x)",
        "x.view(np.matrix).T",
        "np.array(x, '>f8')",
        "x[:, None].T.T",
        "x[::-1][::-1]",
    ],
)
def test_arrays_of_any_kind_are_answered_as_plain_ones(values: str, tmp_path: Path) -> None:
    handler = function(tmp_path, f"def infer(x):\n    return {{'y': {values}}}\n")
    in_json, in_binary, row, file = answers(
        handler,
        [
            inference({"x": np.array([1.0, 2.0])}),
            inference({"x": np.array([1.0, 2.0])}, is_binary=True),
            (instances(1, 2), {}),
            (npy(np.array([1.0, 2.0])), ACCEPT_NPY),
        ],
    )
    assert columns(in_json)["y"].ravel().tolist() == columns(in_binary)["y"].ravel().tolist() == [1, 2]
    assert np.array(row.body["predictions"]).tolist() == columns(in_json)["y"].tolist()
    assert np.load(io.BytesIO(file.body)).ravel().tolist() == [1, 2]


def test_answer_over_max_response_bytes_is_refused_with_its_size(tmp_path: Path) -> None:
    handler = function(
        tmp_path, "def infer(n):\n    return {'y': np.ones((len(n), n.max()))}\n", max_response_bytes=1000
    )
    for answer in answers(
        handler,
        [
            (as_json({"n": 900}), {}),
            (instances(900), {}),
            (inputs(n=[900]), {}),
            inference({"n": np.array([900])}),
            (npy(np.array([900])), ACCEPT_NPY),
            (npy(np.array([900])), ACCEPT_NPZ),
        ],
    ):
        assert answer.status == 413
        assert "max_response_bytes is 1000" in str(answer.body)
    assert ask(handler, as_json({"n": 9})).status == 200


def test_numbers_that_json_has_not_are_null_in_it_and_themselves_elsewhere(tmp_path: Path) -> None:
    handler = function(tmp_path, "def infer(x):\n    return {'y': np.full((1, 2), [-np.inf, np.nan])}\n")
    given = np.zeros((1, 2))
    (row, rows, in_columns, in_json, in_binary) = answers(
        handler,
        [
            (as_json({"x": [0, 0]}), {}),
            (instances([0, 0]), {}),
            (inputs(x=[[0, 0]]), {}),
            inference({"x": given}),
            inference({"x": given}, is_binary=True),
        ],
    )
    assert row.body == {"y": [None, None]}
    assert rows.body == {"predictions": [[None, None]]}
    assert in_columns.body == {"outputs": {"y": [[None, None]]}}
    assert in_json.body["outputs"][0]["data"] == [None, None]
    np.testing.assert_array_equal(columns(in_binary)["y"], [[-np.inf, np.nan]])


def test_who_waits_no_longer_and_who_comes_first_is_the_schedules_affair(tmp_path: Path) -> None:
    handler = function(tmp_path, SLOW, **ADAPTIVE, max_batch_size=1)
    with Frontend(handler) as frontend:
        first = frontend.submit(npy(np.zeros(1))["body"])
        pending = frontend.submit_together(
            [
                (npy(np.array([3.0]))["body"], {"X-Priority": "3"}),
                (npy(np.array([1.0]))["body"], {"X-Priority": "1"}),
                (npy(np.array([9.0]))["body"], {"X-Timeout-Ms": "1"}),
                (npy(np.array([9.0]))["body"], {"X-Priority": "4"}),
                (npy(np.array([9.0]))["body"], {"X-Timeout-Ms": "soon"}),
            ]
        )
        assert first.result(20).status == 200
        low, high, late, no_level, no_time = [each.result(20) for each in pending]
    assert high.body["outputs"]["order"] < low.body["outputs"]["order"]
    assert late.status in (503, 504)
    assert (no_level.body["type"], no_time.body["type"]) == ("InvalidPriority", "InvalidTimeout")


SLOW = """
import itertools, time

order = itertools.count()

def infer(x):
    time.sleep(0.05)
    return {"order": np.array([next(order)] * len(x))}
"""
