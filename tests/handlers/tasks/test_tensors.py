"""A model of tensors behind every form of request: the model's own numbers, whoever shares a micro-batch with whom."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from handlers.tasks.tensors import TensorsHandler
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.serving import Answer, serve
from tests.handlers.tensor_models.models import (
    ACCEPT_NPZ,
    ADAPTIVE,
    as_json,
    columns,
    function,
    inference,
    inputs,
    instances,
    npz,
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


@pytest.fixture(params=["classic", "adaptive"])
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ADAPTIVE if request.param == "adaptive" else {}


def answers(handler: TensorsHandler, sent: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Answer]:
    """What clients get who send at one time, in the handler's mode."""
    if handler.config.scheduling.mode == "classic":
        return serve(handler, [body for body, _ in sent], [headers for _, headers in sent])
    with Frontend(handler) as frontend:
        pending = frontend.submit_together([(body["body"], headers) for body, headers in sent])
        return [each.result(20) for each in pending]


def close(actual: Any, wanted: NDArray[Any]) -> None:
    np.testing.assert_allclose(np.asarray(actual, wanted.dtype), wanted, rtol=1e-5, atol=1e-5)


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
