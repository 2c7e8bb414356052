"""A model of tensors behind every form of request: the model's own numbers, in any mix of a micro-batch.

Rows whose free dimensions differ run apart, or padded to the largest of their micro-batch and cut back to their own.
"""

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset13 as opset

from handlers.archive_files import GRAPH
from handlers.protocol.tensors import to_bfloat16
from handlers.tasks.tensors import TensorsHandler
from handlers.tensor_models.signature import SIGNATURE, DeclaredSignature, Tensor
from tests.handlers.serving import Answer
from tests.handlers.tensor_models import models
from tests.handlers.tensor_models.models import (
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

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
# Of `y`, rows lie along dimension 1, and the other one is free; so do those of `turned`.
MIRROR = """
def infer(x, y):
    return {"turned": x.T, "y": y, "size": np.full(len(x), y.shape[0])}
"""


def forms(datatype: str, x: NDArray[Any], y: NDArray[Any]) -> dict[str, Any]:
    """The same rows in every form that can say them; the last has the first row only."""
    rows = [{"x": a, "y": b} for a, b in zip(x.tolist(), y.T.tolist(), strict=True)]
    binary = {name: to_bfloat16(a) if datatype == "BF16" else a for name, a in (("x", x), ("y", y))}
    bodies = {"instances": instances(*rows), "columns": inputs(x=x.tolist(), y=y.tolist()), "row": as_json(rows[0])}
    made = {**{form: (body, {}) for form, body in bodies.items()}, "binary": inference(binary, True)}
    return made if datatype == "BF16" else {**made, "json": inference({"x": x, "y": y})}


def check(answer: Answer, form: str, x: NDArray[Any], y: NDArray[Any]) -> None:
    assert answer.status == 200, (form, answer)
    count, length = len(x), len(y)
    wanted = {"turned": x.T.tolist(), "y": y.tolist(), "size": [length] * count}
    rows = [{"turned": a, "y": b, "size": length} for a, b in zip(x.tolist(), y.T.tolist(), strict=True)]
    if form in ("binary", "json"):
        assert {name: array.tolist() for name, array in columns(answer).items()} == wanted
    else:
        expected = {"instances": {"predictions": rows}, "columns": {"outputs": wanted}, "row": rows[0]}
        assert answer.body == expected[form]


MODES = [*((each, {}) for each in models.DATATYPES), ("FP32", models.ADAPTIVE), ("BYTES", models.ADAPTIVE)]


@pytest.mark.parametrize(("datatype", "mode"), MODES)
def test_clients_of_every_form_in_any_order_get_their_own_rows(datatype: str, mode: Any, tmp_path: Path) -> None:
    x, y = {"datatype": datatype, "shape": [-1, 2]}, {"datatype": datatype, "shape": [-1, -1], "batch_dim": 1}
    outputs = {"turned": {"datatype": datatype, "batch_dim": 1}, "y": y, "size": {}}
    handler = function(tmp_path, MIRROR, inputs={"x": x, "y": y}, outputs=outputs, **mode)
    sent = []
    for number, (count, length) in enumerate(((1, 2), (3, 2), (5, 1))):
        a, b = models.values(datatype, (count, 2), number), models.values(datatype, (length, count), 7 + number)
        sent += [(form, request, a, b) for form, request in forms(datatype, a, b).items()]
    for seed in range(2):
        random.Random(seed).shuffle(sent)
        got = answers(handler, [request for _, request, *_ in sent])
        for answer, (form, _, a, b) in zip(got, sent, strict=True):
            check(answer, form, *((a[:1], b[:, :1]) if form == "row" else (a, b)))


def test_function_without_configuration_takes_what_each_client_sends(tmp_path: Path) -> None:
    handler = function(tmp_path, "def infer(x):\n    return {'y': x, 'doubled': x + x}\n")
    for array in (np.array([[1, 2]], np.int64), np.array([[1.5]], np.float16), np.array([[[2.5]], [[1]]])):
        (answer,) = answers(handler, [inference({"x": array}, True)])
        assert columns(answer)["doubled"].tolist() == (array + array).tolist()
        assert columns(answer)["y"].dtype == array.dtype
        (unnamed,) = answers(handler, [inference({"input": array}, True)])  # of a client that sends a bare array
        assert columns(unnamed)["y"].tolist() == array.tolist()
    ours, theirs, text = models.plainly(handler, instances({"x": 1}, {"x": [2.5]}), inputs(x=[7]), instances("a"))
    assert ours.body == {"predictions": [{"y": 1, "doubled": 2}, {"y": [2.5], "doubled": [5.0]}]}
    assert theirs.body == {"outputs": {"y": [7], "doubled": [14]}}
    assert text.body["predictions"] == [{"doubled": "aa", "y": "a"}]
    told = [(each.name, each.datatype, each.shape) for each in handler.archive.metadata.outputs]
    assert told == [("y", "ANY", (-1,)), ("doubled", "ANY", (-1,))]


BUFFER = """
buffer = np.zeros((64, 2))

def infer(x):
    assert x.flags.c_contiguous
    buffer[: len(x)] = x
    x[:] = 0
    return {"y": buffer[: len(x)], "same": buffer[: len(x)].copy()}
"""


class Remembering(torch.nn.Module):
    """Returns a buffer, which the next run overwrites, and its input."""

    buffer: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.buffer[: x.shape[0]] = x
        return self.buffer[: x.shape[0]], x


def test_model_that_gives_the_same_memory_each_time_mixes_nobodys_numbers(tmp_path: Path) -> None:
    # Micro-batches of two: the answers of the first are written when the second has run.
    said = DeclaredSignature((Tensor("x", "FP32", (-1, 2)),))
    for handler in (
        function(tmp_path / "function", BUFFER, max_batch_items=2),
        models.scripted(tmp_path / "program", Remembering(), said, max_batch_items=2),
    ):
        given = np.random.default_rng(17).normal(size=(9, 1, 2)).astype(np.float32)
        got = answers(handler, [inference({"x": x}, True) for x in given])
        for answer, row in zip(got, given, strict=True):
            assert [array.tolist() for array in columns(answer).values()] == [row.tolist()] * 2


LENGTHS = "def infer(x):\n    return {'y': x, 'rows': np.full(len(x), len(x))}\n"


def test_request_of_more_rows_than_a_run_is_split_and_of_more_than_max_request_items_rejected(tmp_path: Path) -> None:
    rows = {"x": np.arange(5.0)}
    kinds = [inference(rows), inference(rows, True), (instances(*range(5)), {}), (inputs(x=[*range(5)]), {})]
    strict = function(tmp_path / "strict", LENGTHS, max_request_items=2)
    for answer in answers(strict, kinds):
        assert answer.status == 400
        assert "The request has 5 rows; batch-size must be <= 2 for 'model'." in str(answer.body)
    split = function(tmp_path / "split", LENGTHS, max_batch_items=2, max_request_items=5)
    for answer in answers(split, kinds)[:2]:
        got = columns(answer)
        assert got["y"].tolist() == rows["x"].tolist()
        assert set(got["rows"].tolist()) <= {1, 2}
    assert (split.archive.metadata.max_request_items, strict.archive.metadata.max_request_items) == (5, 2)
    over = ask(split, instances(*range(6)))
    assert (over.status, over.body["message"]) == (400, "The request has 6 rows; batch-size must be <= 5 for 'model'.")


@pytest.mark.parametrize("datatype", ["BF16", "FP16", "FP64"])
def test_program_of_another_type_is_answered_in_it(datatype: str, tmp_path: Path) -> None:
    said = DeclaredSignature((Tensor("input", datatype, (-1, 2)),), (Tensor("output", datatype, (-1, 2)),))
    handler, array = models.scripted(tmp_path, torch.nn.ReLU(), said), np.array([[1, 3], [5, -2]])
    sent = to_bfloat16(array) if datatype == "BF16" else array.astype({"FP16": "f2", "FP64": "f8"}[datatype])
    answer = ask(handler, *inference({"input": sent}, True))
    assert columns(answer)["output"].tolist() == [[1, 3], [5, 0]]
    assert f'"datatype":"{datatype}"'.encode() in answer.body
    assert ask(handler, instances(*array.tolist())).body["predictions"] == [[1, 3], [5, 0]]


@models.in_both_modes
def test_sizes_that_the_graph_rejects_are_rejected_and_get_nobody_elses_numbers(mode: Any, tmp_path: Path) -> None:
    """On one thread OpenVINO ends such a run without an error, and its outputs are those of the run before."""
    x = opset.parameter([-1, -1], np.float32, name="x")
    doubled = opset.multiply(opset.reshape(x, [0, 2, -1], special_zero=True), np.float32(2))
    halves = opset.reduce_sum(doubled, [2])
    halves.output(0).get_tensor().set_names({"halves"})
    openvino.save_model(openvino.Model([halves], [x], "halves"), tmp_path / GRAPH)
    said = DeclaredSignature((Tensor("x", "FP32", (-1, -1)),), (Tensor("halves", "FP32", (-1, 2)),))
    (tmp_path / SIGNATURE).write_text(said.to_json())
    handler = models.loaded(tmp_path, mode)
    for number in range(1, 5):
        row = np.full((1, 4), number, np.float32)
        bad, good = answers(handler, [inference({"x": row[:, :3]}), inference({"x": row})])
        assert (bad.status, good.status) == (400, 200)
        assert "cannot compute with inputs of" in bad.body["error"]
        assert good.body["outputs"][0]["data"] == [4 * number, 4 * number]


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


def test_only_a_model_without_chance_shares_the_results_of_equal_items(tmp_path: Path) -> None:
    said = DeclaredSignature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))

    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    class Noisy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    found = []
    for name, module in (("plain", Plain()), ("noisy", Noisy())):
        (folder := tmp_path / name).mkdir()
        found.append(models.scripted(folder, module, said).results.is_repeatable)
    (folder := tmp_path / "function").mkdir()
    found.append(function(folder, "def infer(x): return {'y': x}").results.is_repeatable)
    assert found == [True, False, False]
