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
from tests.handlers.serving import Answer, Log, Patch, serve, started
from tests.tables import table

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
        if "rejected" in bodies:
            raise PredictionException("no rejected texts", 418)
        if "first" in bodies:
            return [words[0]]
        for index, body in enumerate(bodies):
            context.set_response_header(index, "X-Asked", context.get_request_header(index, "X-Ask"))
            if status := {"teapot": 404, "unknown status": 299}.get(body):
                context.set_response_status(status, "what", index)
        return [{"bytes": b"bytes", "seen": self.seen}.get(body, {"said": body}) for body in bodies]
"""
Old = Callable[..., StockHandler]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: Patch) -> Old:
    def start(source: str = HANDLER) -> StockHandler:
        folder = tmp_path / "original"
        (folder / "MAR-INF").mkdir(parents=True)
        manifest = {"modelName": "old", "handler": "old_handler.py", "configFile": "model-config.yaml"}
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": manifest}))
        (folder / "model-config.yaml").write_text("handler: {old: 1}")
        (folder / "old_handler.py").write_text(source)
        (folder / "words.txt").write_text("alpha beta")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "modules", sys.modules.copy())
        return started(StockHandler(), tmp_path, {})

    return start


def ask(handler: StockHandler, *bodies: str) -> list[Answer]:
    headers = [{"X-Ask": body, "body": {"content-type": "application/octet-stream"}} for body in bodies]
    return serve(handler, [bytearray(body.encode()) for body in bodies], headers)


def test_old_handler_sees_its_own_archive_and_rows_and_its_answers_are_unchanged(old: Old, tmp_path: Path) -> None:
    handler = old()
    (answer,) = ask(handler, "seen")
    seen = {"model_dir": str(tmp_path / "original"), "manifest": "old", "settings": {"handler": {"old": 1}}}
    assert answer.body | seen | {"gpu_id": None, "batch_size": 4, "onnx": True} == answer.body
    plain, raw, lost = ask(handler, "plain", "bytes", "teapot")
    assert (plain.status, plain.body, plain.headers["X-Asked"]) == (200, {"said": "plain"}, "plain")
    assert (raw.body, raw.headers["content-type"]) == (b"bytes", "application/octet-stream")
    assert (lost.status, lost.headers["X-Asked"]) == (404, "teapot")
    assert 'batch;desc="3"' in plain.headers["Server-Timing"]
    # A wrong number of answers is found, and each row is answered by itself.
    answers = [answer.body for answer in ask(handler, "one", "first", "three", "four")]
    assert answers == [{"said": "one"}, b"alpha", {"said": "three"}, {"said": "four"}]


def test_old_handler_gets_json_as_objects_and_texts_as_text_by_the_type_of_each_field(old: Old) -> None:
    handler = old(
        HANDLER.split("    def handle", maxsplit=1)[0]
        + """
    def handle(self, data, context):
        return [{name: type(value).__name__ for name, value in row.items()} for row in data]
"""
    )
    types = {"body": "application/json", "text": "text/plain", "image": "image/png", "broken": "application/json"}
    row = {name: bytearray(b"[1]" if name != "broken" else b"{") for name in types}
    (answer,) = serve(handler, [row], [{name: {"content-type": kind} for name, kind in types.items()}])
    assert answer.body == {"body": "list", "text": "str", "image": "bytearray", "broken": "bytearray"}


@table(
    ("bug", 500, {"type": "InternalError"}),
    ("rejected", 418, {"type": "PredictionException", "message": "no rejected texts"}),
    ("unknown status", 500, {"type": "WrongOutput"}),
)
def test_only_the_request_at_fault_gets_an_error(bad: str, status: int, body: Any, old: Old, caplog: Log) -> None:
    handler, bodies = old(), [f"text {index}" for index in range(15)]
    answers = ask(handler, *bodies[:6], bad, *bodies[6:])
    failed = answers.pop(6)
    assert [(answer.status, answer.body) for answer in answers] == [(200, {"said": text}) for text in bodies]
    assert failed.status == status and body.items() <= failed.body.items()
    assert "text 3" not in json.dumps(failed.body) + caplog.text


def test_old_handler_has_torchserves_precision_of_fp32(old: Old, monkeypatch: Patch) -> None:
    """TF32 on a GPU that has it; the engines of other tasks compute in fp32."""
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr("handlers.tasks.stock.STOCK_PRECISION", "high")
    old()
    assert torch.get_float32_matmul_precision() == "high" != before
    torch.set_float32_matmul_precision(before)


def test_packages_that_are_missing_are_one_line_with_the_way_out(old: Old) -> None:
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
