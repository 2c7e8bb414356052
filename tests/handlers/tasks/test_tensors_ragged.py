"""Rows whose free dimensions differ: apart, or padded to the largest of their micro-batch and cut back to their own."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handlers.tasks.tensors import TensorsHandler
from tests.handlers.tensor_models.models import (
    ask,
    columns,
    function,
    in_both_modes,
    inference,
    inputs,
    instances,
    npy,
    npz,
    plainly,
)

# Each row's sum, and each position doubled; where the mask is 0 stands the pad value, which would show in the sum.
PADDED = """
def infer(x, mask):
    assert x.shape[:2] == mask.shape and x.flags.writeable and mask.flags.writeable
    assert (x[mask == 0] == -7).all()
    rows = np.full(len(x), len(x))
    return {"sum": np.where(mask[..., None], x, 0).sum((1, 2)), "twice": (2 * x).sum(2), "rows": rows}
"""
PAD: dict[str, Any] = {
    "inputs": {
        "x": {"datatype": "FP32", "shape": [-1, -1, 2], "pad": {"mask": "mask", "value": -7}},
        "mask": {"datatype": "INT8", "shape": [-1, -1]},
    },
    "outputs": {
        "sum": {"datatype": "FP32", "shape": [-1]},
        "twice": {"datatype": "FP32", "shape": [-1, -1], "follows": "x"},
        "rows": {},
    },
}


def sequences(*lengths: int) -> list[Any]:
    return [[[float(position), 1.0] for position in range(length)] for length in lengths]


def wanted(row: list[list[float]]) -> dict[str, Any]:
    return {"sum": sum(map(sum, row)), "twice": [2 * sum(position) for position in row]}


def of_client(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("sum", "twice")}


@in_both_modes
def test_rows_of_different_lengths_share_a_micro_batch_and_get_their_own(mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, PADDED, **PAD, **mode)
    rows = sequences(3, 1, 5, 2)
    together, *alone = plainly(handler, instances(*rows), *(instances({"x": row}) for row in rows))
    assert [of_client(row) for row in together.body["predictions"]] == [wanted(row) for row in rows]
    for answer, row in zip(alone, rows, strict=True):
        assert [of_client(each) for each in answer.body["predictions"]] == [wanted(row)]
    assert max(row["rows"] for row in together.body["predictions"]) > 1


def test_mask_that_a_client_sends_says_which_of_its_positions_count(tmp_path: Path) -> None:
    source = "def infer(x, mask):\n    return {'n': mask.sum(1), 'rows': np.full(len(x), len(x))}\n"
    handler = function(tmp_path, source, inputs=PAD["inputs"], outputs={"n": {}, "rows": {}})
    masked, own, longer = sequences(3, 3, 5)
    got = plainly(handler, instances({"x": masked, "mask": [1, 0, 1]}, {"x": own}), instances({"x": longer}))
    assert [[row["n"] for row in answer.body["predictions"]] for answer in got] == [[2, 3], [5]]
    assert got[0].body["predictions"][0]["rows"] == 3
    array, mask = np.array([masked], np.float32), np.array([[0, 0, 1]], np.int8)
    for body, headers in (inference({"x": array, "mask": mask}), inference({"x": array, "mask": mask}, is_binary=True)):
        assert columns(ask(handler, body, headers))["n"].tolist() == [1]
    assert ask(handler, npz(x=array, mask=mask)).body["outputs"]["n"] == [1]
    # A file of one array is the input that is needed.
    assert ask(handler, npy(array)).body["outputs"]["n"] == [3]


def test_outputs_of_one_tensor_must_be_of_one_size(tmp_path: Path) -> None:
    source = "def infer(n):\n    return {'y': np.ones((len(n), n[0]))}\n"
    handler = function(tmp_path, source, max_items=1)
    apart, together = plainly(handler, instances(1, 3), inputs(n=[1, 3]))
    assert apart.body == {"predictions": [[1.0], [1.0, 1.0, 1.0]]}
    assert (together.status, together.body["type"]) == (500, "WrongOutput")
    assert together.body["message"].startswith("y: the rows are of different sizes")


# Two free dimensions, rows along the last.
IMAGES = """
def infer(mask, image):
    assert image.shape == mask.shape, (image.shape, mask.shape)
    return {"bright": image + 1, "size": np.array([mask[..., row].sum() for row in range(mask.shape[-1])])}
"""
FREE: dict[str, Any] = {
    "inputs": {
        "image": {"datatype": "UINT8", "shape": [-1, -1, -1], "batch_dim": 2, "pad": {"mask": "mask"}},
        "mask": {"datatype": "BOOL", "shape": [-1, -1, -1], "batch_dim": 2},
    },
    "outputs": {
        "bright": {"datatype": "UINT8", "shape": [-1, -1, -1], "batch_dim": 2, "follows": "image"},
        "size": {},
    },
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> TensorsHandler:
    return function(tmp_path_factory.mktemp("images") / "model", IMAGES, **FREE)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=6), order=st.randoms())
def test_images_of_any_sizes_in_any_order_come_back_as_they_are(images: TensorsHandler, sizes: Any, order: Any) -> None:
    rows = [np.arange(height * width).reshape(height, width) for height, width in sizes]
    order.shuffle(rows)
    (answer,) = plainly(images, instances(*({"image": row.tolist()} for row in rows)))
    for got, row in zip(answer.body["predictions"], rows, strict=True):
        assert got == {"bright": (row + 1).tolist(), "size": row.size}


def test_padding_does_not_outgrow_what_was_sent(images: TensorsHandler) -> None:
    # One row is wide, the other high: padded to one size, eight kilobytes would be 32 megabytes, and so on squared.
    size = 2**12
    wide, high = np.ones((1, size, 1), np.uint8), np.ones((size, 1, 1), np.uint8)
    tracemalloc.start()
    in_files = plainly(images, npz(image=wide), npz(image=high))
    assert [answer.body["outputs"]["size"] for answer in in_files] == [[size], [size]]
    assert tracemalloc.get_traced_memory()[1] < size**2
    tracemalloc.stop()


UNPADDED = "def infer(x):\n    return {'sum': x.sum(1), 'rows': np.full(len(x), len(x))}\n"


@in_both_modes
def test_rows_of_different_lengths_without_a_pad_run_with_their_like(mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, UNPADDED, inputs={"x": {"datatype": "FP64", "shape": [-1, -1]}}, **mode)
    (answer,) = plainly(handler, instances([1, 2], [3], [4, 5], [6], [7, 8, 9]))
    assert [row["sum"] for row in answer.body["predictions"]] == [3, 3, 9, 6, 24]
    assert answer.body["predictions"][4]["rows"] == 1
    assert max(row["rows"] for row in answer.body["predictions"]) <= 2


@in_both_modes
def test_padded_positions_stay_within_a_budget(mode: dict[str, Any], tmp_path: Path) -> None:
    source = "def infer(x, mask):\n    return {'size': np.full(len(x), x[..., 0].size)}\n"
    handler = function(tmp_path, source, inputs=PAD["inputs"], outputs={"size": {}}, max_tokens=10, **mode)
    (answer,) = plainly(handler, instances(*sequences(5, 2, 9, 4, 3, 5, 1)))
    assert {type(row) for row in answer.body["predictions"]} == {int}
    assert max(answer.body["predictions"]) <= 10


@in_both_modes
def test_model_is_run_at_the_sizes_that_its_configuration_names(mode: dict[str, Any], tmp_path: Path) -> None:
    source = f"""
from pathlib import Path

def infer(x, mask):
    with Path({str(tmp_path / "ran")!r}).open("a") as file:
        print(x.shape[1], file=file)
    return {{"y": x}}
"""
    handler = function(
        tmp_path / "model", source, inputs=PAD["inputs"], warm_up=[{"x": [4, 2]}, {"x": [9, 2]}, {"x": [6, 2]}], **mode
    )
    (answer,) = plainly(handler, instances([[1.0, 1.0]]))
    assert answer.status == 200
    ran = (tmp_path / "ran").read_text().split()
    assert set(ran[: ran.index("1")]) == {"4", "9", "6"}
