"""Rows of tensors become micro-batches, and nothing that a model writes into one reaches another."""

from typing import Any

import numpy as np
import pytest

from handlers.config import parse
from handlers.errors import OutOfMemory
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.rows import Rows
from handlers.tensor_models.signature import DeclaredSignature, Tensor, merge_signature
from tests.tables import table

MODEL = DeclaredSignature(
    (Tensor("x", "FP32", (-1, -1)), Tensor("mask", "INT64", (-1, -1)), Tensor("factor", "FP32", (2,))),
    (Tensor("y", "FP32", (-1, -1)), Tensor("sum", "FP32", (-1,))),
)
SETTINGS = {
    "inputs": {"x": {"pad": {"mask": "mask", "value": 7}}},
    "outputs": {"y": {"follows": "x"}},
    "constants": {"factor": [2.0, 3.0]},
}
SIGNATURE = merge_signature(MODEL, parse(TensorsConfig, SETTINGS))


def row(*values: float) -> dict[str, Any]:
    return {"x": np.array([values], np.float32)}


def test_rows_of_different_sizes_are_padded_and_masked_and_their_outputs_cut() -> None:
    rows = Rows(SIGNATURE)
    made = [rows.make_row(row(1, 2, 3)), rows.make_row({**row(4), "mask": np.array([[5]])})]
    assert [each.cost.length for each in made] == [3, 1]
    inputs = rows.collate(made)
    assert inputs["x"].tolist() == [[1, 2, 3], [4, 7, 7]]
    # A mask that was sent is kept.
    assert (inputs["mask"].tolist(), inputs["mask"].dtype.name) == ([[1, 1, 1], [5, 0, 0]], "int64")
    outputs = rows.split_outputs({"y": 2 * inputs["x"], "sum": inputs["x"].sum(1)}, made, SIGNATURE.outputs)
    found = [{name: array.tolist() for name, array in each.items()} for each in outputs]
    assert found == [{"y": [[2, 4, 6]], "sum": [6]}, {"y": [[8]], "sum": [18]}]


@table(1, 2)
def test_model_that_writes_into_its_inputs_changes_no_later_run(count: int) -> None:
    rows, sent = Rows(SIGNATURE), row(1, 2)
    made = [rows.make_row(sent) for _ in range(count)]
    for _ in range(2):
        inputs = rows.collate(made)
        assert (inputs["factor"].tolist(), inputs["x"][0].tolist()) == ([2, 3], [1, 2])
        for array in inputs.values():
            array[:] = 0


def test_padding_that_would_take_far_more_than_the_rows_is_rejected() -> None:
    signature = merge_signature(
        DeclaredSignature((Tensor("x", "INT8", (-1, -1, -1)), Tensor("mask"))),
        parse(
            TensorsConfig,
            {"inputs": {"x": {"pad": {"mask": "mask"}}, "mask": {"datatype": "INT8", "shape": [-1, -1, -1]}}},
        ),
    )
    rows = Rows(signature)
    wide, high = (rows.make_row({"x": np.zeros((1, *size), np.int8)}) for size in ((1, 4096), (4096, 1)))
    assert rows.collate([wide, wide])["x"].shape == (2, 1, 4096)
    with pytest.raises(OutOfMemory):
        rows.collate([wide, high])
