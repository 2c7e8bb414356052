"""A stock archive's handler runs unchanged: it sees its own archive, and each request has its own answer and error."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.models import ROOT
from handlers.errors import InvalidConfig
from handlers.tasks.stock import StockHandler
from tests.handlers.serving import Answer, serve, started

HANDLER = """
import torch
from pathlib import Path
from ts.torch_handler import base_handler
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import PredictionException

words = Path("words.txt").read_text().split()

class Old(BaseHandler):
    def initialize(self, context):
        self.seen = {**context.system_properties, "manifest": context.manifest["model"]["modelName"]}
        self.seen["settings"], self.seen["onnx"] = context.model_yaml_config, base_handler.ONNX_AVAILABLE
        self.calls = []

    def handle(self, data, context):
        bodies = [bytes(row.pop("body")).decode() for row in data]
        self.calls.append(bodies)
        if "bug" in bodies:
            raise ValueError(f"cannot parse {bodies}")
        if "refused" in bodies:
            raise PredictionException("no refused texts", 418)
        if "first" in bodies:
            return [words[0]]
        if "seen" in bodies:
            return [self.seen for _ in bodies]
        for index, body in enumerate(bodies):
            context.set_response_header(index, "X-Asked", context.get_request_header(index, "X-Ask"))
            if body == "teapot":
                context.set_response_status(404, "no such pot", index)
            if body == "unknown status":
                context.set_response_status(299, "what", index)
        return [b"bytes" if body == "bytes" else {"said": body} for body in bodies]
"""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StockHandler]:
    def start(source: str = HANDLER, **model: str) -> StockHandler:
        folder = tmp_path / "original"
        (folder / "MAR-INF").mkdir(parents=True)
        manifest = {"modelName": "old", "handler": "old_handler.py", "configFile": "model-config.yaml", **model}
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": manifest}))
        (folder / "model-config.yaml").write_text("handler: {old: 1}")
        (folder / "old_handler.py").write_text(source)
        (folder / "words.txt").write_text("alpha beta")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "modules", sys.modules.copy())
        handler = StockHandler()
        started(handler, tmp_path, {})
        return handler

    return start


def ask(handler: StockHandler, *bodies: str) -> list[Answer]:
    headers: list[dict[str, Any]] = [
        {"X-Ask": body, "body": {"content-type": "application/octet-stream"}} for body in bodies
    ]
    return serve(handler, [bytearray(body.encode()) for body in bodies], headers)


def test_old_handler_sees_its_own_archive_and_rows_and_its_answers_are_unchanged(
    old: Callable[..., StockHandler], tmp_path: Path
) -> None:
    handler = old()
    (answer,) = ask(handler, "seen")
    assert answer.body["model_dir"] == str(tmp_path / "original")
    assert (answer.body["manifest"], answer.body["settings"]) == ("old", {"handler": {"old": 1}})
    assert (answer.body["gpu_id"], answer.body["batch_size"], answer.body["onnx"]) == (None, 4, True)
    plain, raw, lost = ask(handler, "plain", "bytes", "teapot")
    assert (plain.status, plain.body, plain.headers["X-Asked"]) == (200, {"said": "plain"}, "plain")
    assert (raw.body, raw.headers["content-type"]) == (b"bytes", "application/octet-stream")
    assert (lost.status, lost.headers["X-Asked"]) == (404, "teapot")
    assert 'batch;desc="3"' in plain.headers["Server-Timing"]


@pytest.mark.parametrize(
    ("bad", "status", "body"),
    [
        ("bug", 500, {"type": "InternalError"}),
        ("refused", 418, {"type": "PredictionException", "message": "no refused texts"}),
        ("unknown status", 500, {"type": "WrongOutput"}),
    ],
)
def test_batch_that_fails_is_halved_and_only_the_request_at_fault_gets_an_error(
    old: Callable[..., StockHandler], bad: str, status: int, body: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    handler = old()
    bodies = [f"text {index}" for index in range(15)]
    answers = ask(handler, *bodies[:6], bad, *bodies[6:])
    failed = answers.pop(6)
    assert [(answer.status, answer.body) for answer in answers] == [(200, {"said": text}) for text in bodies]
    assert failed.status == status and body.items() <= failed.body.items()
    assert "text 3" not in json.dumps(failed.body) + caplog.text


def test_wrong_number_of_answers_is_found_and_each_row_is_answered_by_itself(old: Callable[..., StockHandler]) -> None:
    handler = old()
    answers = ask(handler, "one", "first", "three", "four")
    assert [answer.body for answer in answers] == [{"said": "one"}, b"alpha", {"said": "three"}, {"said": "four"}]


def test_old_handler_has_torchserves_precision_of_fp32(
    old: Callable[..., StockHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF32 on a GPU that has it; the engines of other tasks compute in fp32."""
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr("handlers.tasks.stock.STOCK_PRECISION", "high")
    old()
    assert torch.get_float32_matmul_precision() == "high" != before
    torch.set_float32_matmul_precision(before)


def test_packages_that_are_missing_are_one_line_with_the_way_out(old: Callable[..., StockHandler]) -> None:
    with pytest.raises(InvalidConfig, match=r"imports no_such_package, which is not installed.*deploy/environment\.sh"):
        old("import no_such_package\n" + HANDLER)


@pytest.mark.builds
def test_vision_handlers_load_where_captum_is_not_installed() -> None:
    # torchvision looks through all modules for a file, those that stand for captum among them.
    program = """
from importlib import util
from unittest.mock import patch
from handlers import original_archive
with patch.object(util, "find_spec", return_value=None):
    original_archive._provide_captum()
from ts.torch_handler import image_classifier, image_segmenter, object_detector, text_classifier
import captum.attr
captum.attr.IntegratedGradients(None)
assert not hasattr(captum, "__file__")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
