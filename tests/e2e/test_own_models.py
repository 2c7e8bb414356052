"""The examples of models of one's own on a real TorchServe, in its batches, against the libraries they come from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.models import Engine, model
from deploy.server import Server
from tests import own_models
from tests.e2e.conftest import Answer, curl, send_together, url

# Requests at once, and what TorchServe makes of them: batches of up to so many.
REQUESTS, BATCH = 16, 8
# Which engine runs which file of the digits' model.
ENGINES: dict[str, Engine] = {".onnx": "openvino", ".pt2": "torch"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


def together(server: Server, name: str, documents: list[Any]) -> list[Answer]:
    """Send documents at once; some of them must have shared a batch."""
    answers = send_together(server, name, [json.dumps(document).encode() for document in documents])
    sizes = [int(answer.headers["Server-Timing"].split('"')[1]) for answer in answers if answer.status == 200]
    assert max(sizes) > 1, sizes
    return answers


@pytest.mark.parametrize("suffix", ENGINES)
def test_mnist_served_answers_as_the_formats_own_runtime_does(
    suffix: str, folder: Path, server: Server, archive: Callable[..., str], serve: Callable[..., str]
) -> None:
    entry = own_models.mnist(folder, suffix)
    name = serve(
        archive=archive(entry, engine=ENGINES[suffix]), name=entry.name, batch_size=BATCH, max_batch_delay_ms=100
    )
    images = own_models.digits(REQUESTS)
    expected = own_models.probabilities(entry, images)
    answers = together(server, name, [{"image": image.tolist()} for image in images])
    got = np.array([answer.body["probabilities"] for answer in answers])
    np.testing.assert_allclose(got, expected, 0, 1e-5)
    document = entry.folder / "request.json"
    drawn = curl("-H", "Content-Type: application/json", "--data-binary", f"@{document}", url(server, name))
    assert np.argmax(json.loads(drawn)["predictions"][0]) == 0


def test_batch2_served_doubles_two_rows_and_only_the_request_of_three_is_refused(
    server: Server, archive: Callable[..., str], serve: Callable[..., str]
) -> None:
    name = serve(archive=archive(model("batch2")), name="batch2", batch_size=BATCH, max_batch_delay_ms=100)
    rows = [[[index], [-index]] if index != 3 else [[1], [2], [3]] for index in range(REQUESTS)]
    answers = together(server, name, [{"inputs": {"INPUT_1": each}} for each in rows])
    assert (answers[3].status, answers[3].body["type"]) == (400, "BatchTooLarge")
    assert "batch-size must be <= 2" in answers[3].body["message"]
    for index, answer in enumerate(answers):
        if index != 3:
            assert answer.body == {"outputs": {"OUTPUT_1": [[2 * index], [-2 * index]]}}


def test_tabular_served_predicts_as_scikit_learn_does(
    server: Server, archive: Callable[..., str], serve: Callable[..., str]
) -> None:
    name = serve(archive=archive(model("tabular")), name="tabular", batch_size=BATCH, max_batch_delay_ms=100)
    columns, expected = own_models.people(REQUESTS), own_models.progression(REQUESTS)
    people = [
        {name: each.decode() if name == "sex" else each.item() for name, each in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]
    answers = together(server, name, people)
    np.testing.assert_allclose([answer.body["progression"] for answer in answers], expected, 1e-5)
    assert [answer.body["band"] for answer in answers] == own_models.bands(expected)
