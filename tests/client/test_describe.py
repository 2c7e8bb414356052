"""`torchserve-client describe MODEL` on real sockets: what is registered, and what the model takes."""

import json
import time
from typing import Any

import pytest

from tests.client.http_server import serving as managing
from tests.client.tensor_server import HANDLERS, MODEL, TENSORS, TensorServer, serving
from torchserve_client import commands
from torchserve_client.cli import main

REGISTERED = {
    "modelName": MODEL,
    "modelVersion": "1.0",
    "batchSize": 8,
    "maxBatchDelay": 1,
    "workers": [{"status": "READY"}],
    "jobQueueStatus": {"pendingRequests": 0},
}


def management(path: str, _content_type: str, _body: bytes) -> Any:
    return {"models": [{"modelName": MODEL}]} if path.startswith("/models?") else [REGISTERED]


def describe(server: TensorServer, *arguments: str) -> int:
    with managing(management) as url:
        return main(["--server", server.url, "--management", url, "describe", *arguments])


@pytest.mark.parametrize("role", ["torchserve", "gateway"])
def test_describe_shows_what_a_model_takes(role: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(TensorServer(role)) as server:
        assert describe(server, MODEL) == 0
        assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
            [],
            ["max_batch_size", "2"],
            ["tensor", "name", "datatype", "shape"],
            ["input", "INPUT_1", "INT32", "[-1,", "1]"],
            ["output", "OUTPUT_1", "INT32", "[-1,", "1]"],
        ]
        assert describe(server, MODEL, "--json") == 0
        (document,) = json.loads(capsys.readouterr().out)
    said = {**HANDLERS, **TENSORS, "precision": "", "proofs": {}}
    assert document == {**REGISTERED, "isDefault": True, "metadata": said}


@pytest.mark.parametrize("role", ["silent", "stock"])
def test_describe_goes_without_what_a_model_does_not_say(
    role: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "METADATA_S", 0.3)
    started_s = time.monotonic()
    with serving(TensorServer(role)) as server:
        assert describe(server, MODEL) == 0
        assert MODEL in capsys.readouterr().out
        assert describe(server, MODEL, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["metadata"] is None
    assert time.monotonic() - started_s < 20
