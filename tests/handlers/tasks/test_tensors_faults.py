"""Outputs that violate a model's signature, and rows that it cannot run: only the faulty row fails."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.handlers.tensor_models.models import (
    ADAPTIVE,
    answers,
    as_json,
    ask,
    columns,
    function,
    inference,
    inputs,
    instances,
    plainly,
)

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
DECLARED: dict[str, Any] = {
    "inputs": {"x": {"datatype": "FP32", "shape": [-1]}},
    "outputs": {"y": {"datatype": "FP32", "shape": [-1]}},
}


def poisoned(what: str) -> str:
    return f"def infer(x):\n    y = x * 2\n    if 666 in x:\n        {POISON[what][0]}\n    return {{'y': y}}\n"


@pytest.mark.parametrize(
    ("what", "mode"), [*((what, {}) for what in POISON), ("exception", ADAPTIVE), ("memory", ADAPTIVE)]
)
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
    assert mixed.body["predictions"] == [6, {"error": alone.body}, 10]
    assert (third.status, third.body) == (200, {"outputs": {"y": [14, None]}, "errors": [None, alone.body]})


def test_failed_rows_have_their_place_in_every_form(tmp_path: Path) -> None:
    handler = function(tmp_path, poisoned("datatype"), **DECLARED)
    x = np.array([1, 666, 3], np.float32)
    for arrays in map(columns, answers(handler, [inference({"x": x}), inference({"x": x}, True)])):
        np.testing.assert_array_equal(arrays["y"], np.array([2, np.nan, 6], np.float32))
        errors = [each if isinstance(each, str) else each.decode() for each in arrays["error"].tolist()]
        assert errors[::2] == ["", ""]
        assert "FP64 was returned" in errors[1]


def test_numbers_that_json_has_not_are_null_in_it_and_themselves_elsewhere(tmp_path: Path) -> None:
    handler = function(tmp_path, "def infer(x):\n    return {'y': np.full((1, 2), [-np.inf, np.nan])}\n")
    row, rows, table = plainly(handler, as_json({"x": [0, 0]}), instances([0, 0]), inputs(x=[[0, 0]]))
    wanted = [{"y": [None, None]}, {"predictions": [[None, None]]}, {"outputs": {"y": [[None, None]]}}]
    assert [row.body, rows.body, table.body] == wanted
    x = np.zeros((1, 2))
    assert ask(handler, *inference({"x": x})).body["outputs"][0]["data"] == [None, None]
    np.testing.assert_array_equal(columns(ask(handler, *inference({"x": x}, True)))["y"], [[-np.inf, np.nan]])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_row_with_nan_or_infinity_is_refused_alone_unless_the_archive_allows_it(wrong: float, tmp_path: Path) -> None:
    for allowed in (False, True):
        folder = tmp_path / str(allowed)
        handler = function(folder, "def infer(x):\n    return {'y': np.maximum(x, 0)}\n", allow_non_finite=allowed)
        answer = ask(handler, *inference({"x": np.array([1, wrong, 3], np.float32)}, True))
        y, errors = columns(answer)["y"], columns(answer).get("error", [b"", b"", b""])
        np.testing.assert_array_equal(y, np.maximum([1, wrong if allowed else np.nan, 3], 0))
        assert [b"NonFiniteInput" in each for each in errors] == [False, not allowed, False]
