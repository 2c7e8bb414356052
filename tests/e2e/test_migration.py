"""Archives of stock TorchServe, on stock TorchServe and moved here: the same requests, the same answers."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.archives.__main__ import main
from deploy.nodes.run.server import Server
from load.expect import matches
from tests.e2e.conftest import send, send_together
from tests.photographs import photograph
from tests.stock_archives import IRIS, IRIS_LABELS, RESNET, archive, saved, scripted
from tests.trained import resnet18
from torchserve_client.management import ManagementError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
# Requests of a batch; TorchServe waits so long for all of them, in ms.
BATCH, DELAY_MS = 16, 3000
# The most by which equal scores differ.
CLOSE = 1e-4
CORRUPT = b"\xff\xd8 no image"
PHOTOGRAPHS = [photograph(name) for name in ("chelsea", "coffee", "rocket", "astronaut")]
Compared = Callable[..., None]


@pytest.fixture
def compared(server: Server, model_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compared]:
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
        with suppress(ManagementError):
            server.management.unregister(name)
        (model_store / f"{name}.mar").unlink(missing_ok=True)


def resnet_archive(tmp_path: Path) -> Path:
    names = {str(index): [f"n{index:08}", f"label {index}"] for index in range(1000)}
    files: dict[str, Any] = {"model.py": RESNET.replace("=5", "=1000"), "index_to_name.json": json.dumps(names)}
    files["w.pth"] = saved(dict(resnet18()), tmp_path / "w.pth")
    return archive(tmp_path / "old.mar", "image_classifier", files, serializedFile="w.pth", modelFile="model.py")


def test_corrupt_image_fails_its_batch_on_stock_torchserve_and_itself_alone_with_handler_stock(
    server: Server, tmp_path: Path, compared: Compared
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


def test_handler_that_expects_decoded_json_runs_unchanged(server: Server, tmp_path: Path, compared: Compared) -> None:
    network = torch.nn.Linear(4, 3)
    files: dict[str, Any] = {"iris_handler.py": IRIS, "index_to_name.json": IRIS_LABELS}
    files["iris.pt"] = scripted(network, tmp_path / "iris.pt")
    compared(archive(tmp_path / "old.mar", "iris_handler.py", files, serializedFile="iris.pt"), "--stock", delay_ms=1)
    features = [[1.0, 2, 3, 4], [-5, 2, 0, 1]]
    bodies = [json.dumps({"features": each}).encode() for each in features]
    answers = [send(server, "new", body, "application/json") for body in bodies]
    expected = [json.loads(IRIS_LABELS)[str(at)] for at in network(torch.tensor(features)).argmax(1).tolist()]
    assert [answer.body for answer in answers] == [{"class": label} for label in expected]
