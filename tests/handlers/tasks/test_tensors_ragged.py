"""Rows whose free dimensions differ: apart, or padded to the largest of their micro-batch and cut back to their own."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handlers.tasks.tensors import TensorsHandler
from tests.handlers.tensor_models import models
from tests.handlers.tensor_models.models import answers, ask, columns, function, inference, instances, plainly

# Each row's sum, and each position doubled; where the mask is 0 stands the pad value, which would show in the sum.
PADDED = """
def infer(x, mask):
    assert x.shape[:2] == mask.shape and x.flags.writeable and mask.flags.writeable
    assert (x[mask == 0] == -7).all()
    sums = np.where(mask[..., None], x, 0).sum((1, 2))
    return {"sum": sums, "twice": (2 * x).sum(2), "size": np.full(len(x), mask.size)}
"""
LONG = {"datatype": "FP32", "shape": [-1, -1, 2], "pad": {"mask": "mask", "value": -7}}
PAD: dict[str, Any] = {
    "inputs": {"x": LONG, "mask": {"datatype": "INT8", "shape": [-1, -1]}},
    "outputs": {
        **{"sum": {"datatype": "FP32", "shape": [-1]}, "size": {}},
        "twice": {"datatype": "FP32", "shape": [-1, -1], "follows": "x"},
    },
}


def sequences(*lengths: int) -> list[Any]:
    return [[[float(position), 1.0] for position in range(length)] for length in lengths]


@models.in_both_modes
def test_rows_of_different_lengths_share_a_micro_batch_and_get_their_own(mode: dict[str, Any], tmp_path: Path) -> None:
    handler = function(tmp_path, PADDED, **PAD, max_batch_tokens=12, **mode)
    rows = sequences(3, 1, 5, 2, 9, 4)
    together, *alone = plainly(handler, instances(*rows), *(instances({"x": row}) for row in rows))
    got = together.body["predictions"]
    for prediction, answer, row in zip(got, alone, rows, strict=True):
        for each in (prediction, *answer.body["predictions"]):
            assert (each["sum"], each["twice"]) == (sum(map(sum, row)), [2 * sum(position) for position in row])
    # Padded positions count in the budget.
    assert 9 < max(prediction["size"] for prediction in got) <= 12


def test_mask_that_a_client_sends_says_which_of_its_positions_count(tmp_path: Path) -> None:
    source = "def infer(x, mask):\n    return {'n': mask.sum(1), 'rows': np.full(len(x), len(x))}\n"
    handler = function(tmp_path, source, inputs=PAD["inputs"], outputs={"n": {}, "rows": {}})
    masked, own, longer = sequences(3, 3, 5)
    got = plainly(handler, instances({"x": masked, "mask": [1, 0, 1]}, {"x": own}), instances({"x": longer}))
    assert [[row["n"] for row in answer.body["predictions"]] for answer in got] == [[2, 3], [5]]
    assert got[0].body["predictions"][0]["rows"] == 3
    array, mask = np.array([masked], np.float32), np.array([[0, 0, 1]], np.int8)
    for request in (inference({"x": array, "mask": mask}), inference({"x": array, "mask": mask}, True)):
        assert columns(ask(handler, *request))["n"].tolist() == [1]


IMAGES = """
def infer(mask, image):
    assert image.shape == mask.shape, (image.shape, mask.shape)
    return {"bright": image + 1, "size": np.array([mask[..., row].sum() for row in range(mask.shape[-1])])}
"""
OF_IMAGE = {"datatype": "UINT8", "shape": [-1, -1, -1], "batch_dim": 2}
FREE: dict[str, Any] = {
    "inputs": {"image": {**OF_IMAGE, "pad": {"mask": "mask"}}, "mask": {**OF_IMAGE, "datatype": "BOOL"}},
    "outputs": {"bright": {**OF_IMAGE, "follows": "image"}, "size": {}},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> TensorsHandler:
    return function(tmp_path_factory.mktemp("images") / "model", IMAGES, **FREE)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=6))
def test_images_of_any_sizes_in_any_order_come_back_as_they_are(images: TensorsHandler, sizes: Any) -> None:
    rows = [np.arange(height * width).reshape(height, width) for height, width in sizes]
    (answer,) = plainly(images, instances(*({"image": row.tolist()} for row in rows)))
    for got, row in zip(answer.body["predictions"], rows, strict=True):
        assert got == {"bright": (row + 1).tolist(), "size": row.size}


def test_padding_does_not_outgrow_what_was_sent(images: TensorsHandler) -> None:
    # One row is wide, the other high: padded to one size, eight kilobytes would be 32 megabytes, and so on squared.
    size = 2**12
    wide, high = np.ones((1, size, 1), np.uint8), np.ones((size, 1, 1), np.uint8)
    tracemalloc.start()
    got = answers(images, [inference({"image": wide}, True), inference({"image": high}, True)])
    assert [columns(answer)["size"].tolist() for answer in got] == [[size], [size]]
    assert tracemalloc.get_traced_memory()[1] < size**2
    tracemalloc.stop()


def test_rows_of_different_lengths_without_a_pad_run_with_their_like(tmp_path: Path) -> None:
    source = "def infer(x):\n    return {'sum': x.sum(1), 'rows': np.full(len(x), len(x))}\n"
    handler = function(tmp_path, source, inputs={"x": {"datatype": "FP64", "shape": [-1, -1]}})
    (answer,) = plainly(handler, instances([1, 2], [3], [4, 5], [6], [7, 8, 9]))
    got = [(row["sum"], row["rows"]) for row in answer.body["predictions"]]
    assert got == [(3, 2), (3, 2), (9, 2), (6, 2), (24, 1)]


@models.in_both_modes
def test_model_is_run_at_the_sizes_that_its_configuration_names(mode: dict[str, Any], tmp_path: Path) -> None:
    source = f"""
from pathlib import Path

def infer(x, mask):
    with Path({str(tmp_path / "ran")!r}).open("a") as file:
        print(x.shape[1], file=file)
    return {{"y": x}}
"""
    warm_up = [{"x": [4, 2]}, {"x": [9, 2]}, {"x": [6, 2]}]
    handler = function(tmp_path / "model", source, inputs=PAD["inputs"], warm_up=warm_up, **mode)
    (answer,) = plainly(handler, instances([[1.0, 1.0]]))
    assert answer.status == 200
    ran = (tmp_path / "ran").read_text().split()
    assert set(ran[: ran.index("1")]) == {"4", "9", "6"}
