"""Archives of stock TorchServe, on stock TorchServe and moved here: the same requests, the same answers."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.archives.__main__ import main
from deploy.run.server import Server
from load.expect import matches
from tests import tiny_detector
from tests.e2e.conftest import send, send_together
from tests.photographs import photograph
from tests.stock_archives import IRIS, IRIS_LABELS, RESNET, archive, saved, scripted
from tests.trained import resnet18
from torchserve_client.management import ManagementError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
# Requests of a batch; TorchServe waits so long for all of them, in ms.
BATCH, DELAY_MS = 16, 3000
# The most by which equal scores differ, and coordinates.
CLOSE, PIXELS = 1e-4, 0.02
CORRUPT = b"\xff\xd8 no image"
PHOTOGRAPHS = [photograph(name) for name in ("chelsea", "coffee", "rocket", "astronaut")]

# The first class of an SSD stands for none.
CLASSES = len(tiny_detector.LABELS) + 1
SSDLITE = f"""
import torchvision
from torchvision.models.detection.ssd import SSD

class Network(SSD):
    def __init__(self):
        made = torchvision.models.detection.{tiny_detector.SSDLITE}(
            weights=None, weights_backbone=None, num_classes={CLASSES}
        )
        super().__init__(
            made.backbone, made.anchor_generator, (320, 320), {CLASSES}, image_mean=[0.5] * 3,
            image_std=[0.5] * 3, head=made.head, score_thresh=0.001, nms_thresh=0.55, detections_per_img=300,
            topk_candidates=300,
        )
"""
NUMPY = """
import json
import numpy as np
from ts.torch_handler.base_handler import BaseHandler

class Table(BaseHandler):
    def initialize(self, context):
        self.table = np.load("table.npy")

    def preprocess(self, data):
        return np.array([json.loads(row["body"])["features"] for row in data])

    def inference(self, rows):
        return rows @ self.table

    def postprocess(self, values):
        return [{"value": float(value)} for value in values]
"""


@pytest.fixture
def compared(server: Server, model_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serve an old archive by stock TorchServe as `old`, and what archive.sh makes of it as `new`, for one test."""
    monkeypatch.chdir(tmp_path)

    def serve(path: Path, *options: str, batch_size: int = BATCH, delay_ms: int = DELAY_MS) -> None:
        shutil.copyfile(path, model_store / "old.mar")
        assert main(["--from", str(path), "new", "--export-path", str(model_store), *options]) == 0
        for name in ("old", "new"):
            # An adaptive archive has one worker, and its window in place of a batch.
            server.register(name, f"{name}.mar", batch_size=batch_size, max_batch_delay_ms=delay_ms, workers=1)

    yield serve
    for name in ("old", "new"):
        try:
            server.management.unregister(name)
        except ManagementError:
            pass
        (model_store / f"{name}.mar").unlink(missing_ok=True)


def resnet_archive(tmp_path: Path) -> Path:
    names = {str(index): [f"n{index:08}", f"label {index}"] for index in range(1000)}
    files: dict[str, Path | str | bytes] = {
        "model.py": RESNET.replace("num_classes=5", "num_classes=1000"),
        "index_to_name.json": json.dumps(names),
    }
    files["resnet18.pth"] = saved(dict(resnet18()), tmp_path / "resnet18.pth")
    names_of = {"serializedFile": "resnet18.pth", "modelFile": "model.py"}
    return archive(tmp_path / "old.mar", "image_classifier", files, **names_of)


def test_corrupt_image_fails_its_batch_on_stock_torchserve_and_itself_alone_with_handler_stock(
    server: Server, tmp_path: Path, compared: Callable[..., None]
) -> None:
    compared(resnet_archive(tmp_path), "--stock")
    bodies = PHOTOGRAPHS * 4
    bodies[random.Random(1).randrange(BATCH)] = CORRUPT
    stock, ours = (send_together(server, name, bodies) for name in ("old", "new"))
    assert [answer.status for answer in stock] == [503] * BATCH
    assert [answer.status for answer in ours] == [500 if body == CORRUPT else 200 for body in bodies]
    alone = dict(zip(PHOTOGRAPHS, send_together(server, "old", PHOTOGRAPHS), strict=True))
    for body, answer in zip(bodies, ours, strict=True):
        if body != CORRUPT:
            assert matches(alone[body].body, answer.body, CLOSE) and "Server-Timing" in answer.headers
    assert len({json.dumps(answer.body) for answer in alone.values()}) == len(PHOTOGRAPHS)


def test_image_classifier_that_is_moved_answers_as_before(
    server: Server, tmp_path: Path, compared: Callable[..., None]
) -> None:
    compared(resnet_archive(tmp_path), delay_ms=1)
    for body in PHOTOGRAPHS:
        assert matches(send(server, "old", body).body, send(server, "new", body).body, CLOSE)


def test_object_detector_that_is_moved_answers_as_before(
    server: Server, tmp_path: Path, compared: Callable[..., None]
) -> None:
    weights, _ = tiny_detector.ssdlite(tmp_path)
    labels = json.dumps(dict(enumerate(("none", *tiny_detector.LABELS))))
    files: dict[str, Any] = {"model.py": SSDLITE, "w.pth": weights, "index_to_name.json": labels}
    path = archive(tmp_path / "old.mar", "object_detector", files, serializedFile="w.pth", modelFile="model.py")
    # tests/handlers/tasks has the graph of OpenVINO, whose export takes a minute.
    compared(path, "--engine", "torch", delay_ms=1)
    answers = [(send(server, "new", body).body, send(server, "old", body).body) for body in PHOTOGRAPHS]
    assert all(matches(old, new, PIXELS) for new, old in answers) and sum(len(old) for _, old in answers) > 3


def test_custom_handler_runs_unchanged(server: Server, tmp_path: Path, compared: Callable[..., None]) -> None:
    np.save(tmp_path / "table.npy", np.arange(1.0, 5.0))
    files: dict[str, Any] = {"h.py": NUMPY, "table.npy": tmp_path / "table.npy"}
    compared(archive(tmp_path / "old.mar", "h.py", files), "--stock", delay_ms=200)
    bodies = [json.dumps({"features": [index, 1.5, -2.0, 0.5]}).encode() for index in range(5)]
    new, old = (send_together(server, name, bodies) for name in ("new", "old"))
    assert all(matches(one.body, other.body, CLOSE) for one, other in zip(old, new, strict=True))
    assert len({json.dumps(answer.body) for answer in new}) == len(bodies)
    assert {answer.status for answer in send_together(server, "new", [*bodies[:3], b"no JSON"])} == {200, 500}


def test_handler_that_expects_decoded_json_runs_unchanged(
    server: Server, tmp_path: Path, compared: Callable[..., None]
) -> None:
    network = torch.nn.Linear(4, 3)
    files: dict[str, Any] = {"iris_handler.py": IRIS, "index_to_name.json": IRIS_LABELS}
    files["iris.pt"] = scripted(network, tmp_path / "iris.pt")
    compared(archive(tmp_path / "old.mar", "iris_handler.py", files, serializedFile="iris.pt"), "--stock", delay_ms=1)
    features = [[1.0, 2, 3, 4], [-5, 2, 0, 1]]
    bodies = [json.dumps({"features": each}).encode() for each in features]
    answers = [send(server, "new", body, "application/json") for body in bodies]
    expected = [json.loads(IRIS_LABELS)[str(at)] for at in network(torch.tensor(features)).argmax(1).tolist()]
    assert [answer.body for answer in answers] == [{"class": label} for label in expected]
