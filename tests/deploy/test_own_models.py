"""Each example of a model of one's own, built as archive.sh builds it and served in process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from deploy.archive import Recipe
from deploy.models import Engine, Model, model
from handlers.base import BatchHandler
from handlers.tasks.tensors import TensorsHandler
from tests import own_models
from tests.handlers.serving import Answer, serve, started

Served = Callable[..., BatchHandler[Any, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture
def served(folder: Path) -> Served:
    def start(entry: Model, engine: Engine = "auto") -> BatchHandler[Any, Any]:
        recipe = Recipe(entry, engine=engine, archive_format="no-archive", export_path=folder / "store")
        path = (recipe.find() or recipe.build()).path
        settings = yaml.safe_load((path / "model-config.yaml").read_text())["handler"]
        return started(TensorsHandler(), path, settings)

    return start


def post(handler: BatchHandler[Any, Any], *documents: Any) -> list[Answer]:
    return serve(handler, [json.dumps(document).encode() for document in documents])


@pytest.mark.parametrize(("suffix", "engine"), [(".onnx", "auto"), (".pt2", "auto"), (".pt2", "torch")])
def test_mnist_answers_as_the_formats_own_runtime_does(
    suffix: str, engine: Engine, folder: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = own_models.mnist(folder, suffix)
    if said := capsys.readouterr().out:
        # Trained by this test: "held out: 360 digits, 96.7% right".
        assert float(said.splitlines()[0].split()[4].rstrip("%")) > 90
    images = own_models.digits(7)
    expected = own_models.probabilities(entry, images)
    handler = served(entry, engine)
    several, one, sample = serve(
        handler,
        [
            json.dumps({"inputs": {"image": images[:6].tolist()}}).encode(),
            json.dumps({"image": images[6].tolist()}).encode(),
            own_models.request("mnist"),
        ],
    )
    np.testing.assert_allclose(several.body["outputs"]["probabilities"], expected[:6], 0, 1e-5)
    np.testing.assert_allclose(one.body["probabilities"], expected[6], 0, 1e-5)
    # The one drawn by hand is a zero.
    assert np.argmax(sample.body["predictions"][0]) == 0


def test_batch2_answers_two_rows_and_refuses_three(served: Served) -> None:
    handler = served(model("batch2"))
    sample, three = serve(handler, [own_models.request("batch2"), b'{"inputs": {"INPUT_1": [[1], [2], [3]]}}'])
    assert (sample.status, sample.body) == (200, {"outputs": {"OUTPUT_1": [[6], [8]]}})
    assert (three.status, three.body["type"]) == (400, "BatchTooLarge")
    assert "batch-size must be <= 2" in three.body["message"]


def test_tabular_predicts_as_scikit_learn_does(served: Served) -> None:
    handler = served(model("tabular"))
    columns = own_models.people(20)
    expected = own_models.progression(20)
    document = {
        name: [each.decode() if name == "sex" else each.item() for each in column] for name, column in columns.items()
    }
    whole, sample = serve(handler, [json.dumps({"inputs": document}).encode(), own_models.request("tabular")])
    np.testing.assert_allclose(whole.body["outputs"]["progression"], expected, 1e-5)
    assert whole.body["outputs"]["band"] == own_models.bands(expected)
    # The sample's people are the first two of the data set.
    assert [each["band"] for each in sample.body["predictions"]] == own_models.bands(expected[:2])
    unknown = {"age": 59, "sex": "other", "bmi": 32.1, "blood_pressure": 101}
    wrong, never_seen = post(handler, {**unknown, "sex": 1}, unknown)
    assert (wrong.status, never_seen.status) == (400, 200)
    assert wrong.body["message"].startswith("sex: ")
