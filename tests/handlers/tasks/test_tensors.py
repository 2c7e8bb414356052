"""A model of tensors behind every form of request: the model's own numbers, whoever shares a micro-batch with whom."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.handlers.tensor_models.models import (
    ACCEPT_NPY,
    ACCEPT_NPZ,
    answers,
    as_json,
    columns,
    function,
    in_both_modes,
    inference,
    inputs,
    instances,
    npy,
    npz,
    plainly,
    unzipped,
)

# Two inputs, the second's rows along dimension 1; two outputs, the second's likewise. Its answers are plain sums.
SUMS = """
def infer(x, y):
    calls.append(len(x))
    return {"sum": x + y.T.astype(x.dtype), "both": np.stack([x.sum(1), y.sum(0).astype(x.dtype)])}

calls = []
"""
SUMS_SETTINGS: dict[str, Any] = {
    "inputs": {
        "x": {"datatype": "FP32", "shape": [-1, 3]},
        "y": {"datatype": "INT64", "shape": [3, -1], "batch_dim": 1},
    },
    "outputs": {"sum": {"datatype": "FP32"}, "both": {"batch_dim": 1}},
    "max_batch_size": 8,
}
NOISE = np.random.default_rng(17)


def summands(count: int) -> dict[str, NDArray[Any]]:
    return {
        "x": NOISE.normal(size=(count, 3)).astype(np.float32),
        "y": NOISE.integers(-9, 9, (3, count)),
    }


def sums(x: NDArray[Any], y: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The oracle of SUMS."""
    return {"sum": x + y.T.astype(np.float32), "both": np.array([x.sum(1), y.sum(0)], np.float32)}


def close(actual: Any, wanted: NDArray[Any]) -> None:
    np.testing.assert_allclose(np.asarray(actual, wanted.dtype), wanted, rtol=1e-5, atol=1e-5)


@in_both_modes
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_form_of_request_gets_the_models_numbers(mode: dict[str, Any], count: int, tmp_path: Path) -> None:
    handler = function(tmp_path, SUMS, **SUMS_SETTINGS, **mode)
    given = summands(count)
    wanted = sums(**given)
    x, y = given["x"].tolist(), given["y"].tolist()
    one_row = {"x": x[0], "y": given["y"][:, 0].tolist()}
    rows, in_columns, in_json, in_binary, in_file, alone = answers(
        handler,
        [
            (instances(*({"x": x[i], "y": given["y"][:, i].tolist()} for i in range(count))), {}),
            (inputs(x=x, y=y), {}),
            inference(given),
            inference(given, is_binary=True),
            (npz(**given), ACCEPT_NPZ),
            (as_json(one_row), {}),
        ],
    )
    assert {each.status for each in (rows, in_columns, in_json, in_binary, in_file, alone)} == {200}
    for name, at in (("sum", 0), ("both", 1)):
        by_row = np.moveaxis(wanted[name], at, 0)
        close([row[name] for row in rows.body["predictions"]], by_row)
        close(in_columns.body["outputs"][name], wanted[name])
        close(columns(in_json)[name], wanted[name])
        close(columns(in_binary)[name], wanted[name])
        close(unzipped(in_file)[name], wanted[name])
        close(alone.body[name], by_row[0])


IDENTITY = "def infer(x):\n    return {'y': x}\n"


@in_both_modes
def test_rows_of_many_clients_come_back_to_each_in_any_order(mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, SUMS, **SUMS_SETTINGS, **mode)
    given = [summands(count) for count in (1, 3, 2, 8, 1, 5)]
    for order in (range(6), (5, 3, 1, 0, 2, 4)):
        got = answers(handler, [inference(given[index], is_binary=True) for index in order])
        for index, answer in zip(order, got, strict=True):
            for name, wanted in sums(**given[index]).items():
                close(columns(answer)[name], wanted)


@in_both_modes
def test_function_without_configuration_takes_what_each_client_sends(mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, "def infer(x):\n    return {'y': x, 'doubled': x + x}\n", **mode)
    assert handler.metadata.outputs == []
    for array in (
        np.array([[1, 2]], np.int64),
        np.array([[1.5]], np.float16),
        np.array([[[2.5]], [[1]]]),
        np.array([3], np.uint8),
    ):
        (answer,) = answers(handler, [inference({"x": array}, is_binary=True)])
        assert columns(answer)["doubled"].tolist() == (array + array).tolist()
        assert columns(answer)["y"].dtype == array.dtype
    # Together, too, whatever the others of the micro-batch are.
    ours, theirs, text = plainly(
        handler, instances({"x": 1}, {"x": [2.5]}), npy(np.array([7], np.int8)), instances("a")
    )
    assert ours.body == {"predictions": [{"y": 1, "doubled": 2}, {"y": [2.5], "doubled": [5.0]}]}
    assert theirs.body == {"outputs": {"y": [7], "doubled": [14]}}
    assert text.body["predictions"] == [{"doubled": "aa", "y": "a"}]
    assert [(each.name, each.datatype, each.shape) for each in handler.metadata.outputs] == [
        ("y", "ANY", (-1,)),
        ("doubled", "ANY", (-1,)),
    ]


WRITING = """
seen = []

def infer(x):
    assert x.flags.writeable and x.flags.c_contiguous
    given = x.copy()
    x[:] = 0
    return {"y": given}
"""


@in_both_modes
def test_function_may_write_to_what_it_is_given(mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, WRITING, inputs={"x": {"batch_dim": 1}}, outputs={"y": {"batch_dim": 1}}, **mode)
    for count in (1, 2):
        array = NOISE.normal(size=(3, count))
        fortran = np.asfortranarray(array)
        sent = [
            inference({"x": array}, is_binary=True),
            inference({"x": array}),
            (npy(array), {}),
            (npz(x=fortran), {}),
        ]
        for single in sent:  # alone in its micro-batch, then with others
            (answer,) = answers(handler, [single])
            assert answer.status == 200, answer
        for answer in answers(handler, sent)[:2]:
            assert columns(answer)["y"].tolist() == array.tolist()


BUFFER = """
buffer = np.zeros((64, 2))

def infer(x):
    buffer[: len(x)] = x
    return {"y": buffer[: len(x)], "same": x}
"""


@in_both_modes
def test_function_that_gives_the_same_memory_each_time_mixes_nobodys_numbers(
    mode: dict[str, Any], tmp_path: Path
) -> None:
    # Micro-batches of two: the answers of the first are written when the second has run.
    handler = function(tmp_path, BUFFER, max_batch_size=2, **mode)
    rows = NOISE.normal(size=(9, 2))
    for answer, row in zip(plainly(handler, *(npy(row[None]) for row in rows)), rows, strict=True):
        assert answer.body == {"outputs": {"y": [row.tolist()], "same": [row.tolist()]}}


@pytest.mark.parametrize(
    ("accept", "dtype", "wanted"),
    [
        (ACCEPT_NPY, np.int16, np.int16),
        (ACCEPT_NPZ, np.float16, np.float16),
        (ACCEPT_NPY, ">f8", np.float64),
        (ACCEPT_NPY, "?", np.bool_),
        (ACCEPT_NPY, "S3", "S1"),
    ],
)
def test_files_are_answered_with_files(accept: dict[str, Any], dtype: Any, wanted: Any, tmp_path: Path) -> None:
    handler = function(tmp_path, IDENTITY)
    array = np.array([[1, 0], [3, 4], [5, 6]]).astype(dtype)
    (answer,) = answers(handler, [(npy(array), accept)])
    assert answer.status == 200, answer
    read = np.load(io.BytesIO(answer.body))
    read = read if isinstance(read, np.ndarray) else read["y"]
    assert read.tolist() == array.tolist()
    assert read.dtype == np.dtype(wanted)


def test_rows_over_max_batch_size_are_refused_or_split(tmp_path: Path) -> None:
    rows = {"x": np.arange(5.0)}
    kinds = [
        inference(rows),
        inference(rows, is_binary=True),
        (instances(*range(5)), {}),
        (inputs(x=[0, 1, 2, 3, 4]), {}),
    ]
    strict = function(tmp_path / "strict", LENGTHS, max_batch_size=2)
    message = "The request has 5 rows; batch-size must be <= 2 for 'model'."
    for answer in answers(strict, [*kinds, (npy(rows["x"]), {}), (npz(**rows), {})]):
        assert answer.status == 400
        assert answer.body.get("message") or answer.body["error"] == message
        assert message in str(answer.body)
    split = function(tmp_path / "split", LENGTHS, max_batch_size=2, split_requests=True, max_instances=5)
    for answer in answers(split, kinds)[:2]:
        got = columns(answer)
        assert got["y"].tolist() == rows["x"].tolist()
        assert set(got["rows"].tolist()) <= {1, 2}
    assert (split.metadata.max_instances, strict.metadata.max_instances) == (5, 2)
    (over,) = plainly(split, instances(*range(6)))
    assert (over.status, over.body["message"]) == (400, "The request has 6 rows; batch-size must be <= 5 for 'model'.")


@in_both_modes
def test_micro_batches_hold_no_more_rows_than_the_model_takes(mode: dict[str, Any], tmp_path: Path) -> None:
    if mode:
        mode = {"scheduling": {"mode": "adaptive", "max_batch_items": 16}}
    handler = function(tmp_path, LENGTHS, max_batch_size=2, **mode)
    got = plainly(handler, *(instances(number, number) for number in range(8)))
    assert {row["rows"] for answer in got for row in answer.body["predictions"]} <= {1, 2}


LENGTHS = "def infer(x):\n    return {'y': x, 'rows': np.full(len(x), len(x))}\n"
