"""archive.sh with NNCF itself, in the environment that the project's script builds: ResNet-18, MiniLM, a refusal."""

import json
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from deploy.archive import main
from deploy.fingerprint import proofs_of
from deploy.models import ROOT
from deploy.precision import int8
from handlers.archive_files import GRAPH, INT8_GRAPH
from tests.photographs import crops
from tests.trained import resnet18

pytestmark = [pytest.mark.timeout(900)]

TEXTS = ROOT / "tests" / "sentences_en.txt"


@pytest.fixture(scope="module")
def nncf() -> None:
    """NNCF's environment; built once for all checkouts' tests, in seconds where uv's cache has it."""
    subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", "int8"], cwd=ROOT, check=True, timeout=300)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, nncf: None) -> Path:
    """A list of one's own with ResNet-18, and photographs to calibrate with."""
    folder = tmp_path_factory.mktemp("int8")
    (folder / "resnet18").mkdir()
    settings = {"handler": {"arch": "resnet18"}}
    (folder / "resnet18" / "model-config.yaml").write_text(yaml.safe_dump(settings))
    torch.save(resnet18(), folder / "resnet18.pt")
    entry = {"handler": "image_classification", "version": "1", "weights": "resnet18.pt"}
    (folder / "models.yaml").write_text(yaml.safe_dump({"resnet18": entry}))
    (folder / "photographs").mkdir()
    for number, body in enumerate(crops(48, sides=(256, 320))):
        (folder / "photographs" / f"{number:02}.jpg").write_bytes(body)
    (folder / "photographs" / "notes.txt").write_text("which is which")
    return folder


def build(folder: Path, name: str, *arguments: str) -> int:
    models = ["--models", str(folder / "models.yaml")] if name == "resnet18" else []
    return main([name, *models, "--export-path", str(folder / "store"), "--engine", "openvino", *arguments])


def build_json(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as mar:
        found: dict[str, Any] = json.loads(mar.read("build.json"))
        found["names"] = mar.namelist()
    return found


def test_classifier_in_int8_proves_itself_and_is_up_to_date_after_that(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ("--precision", "int8", "--calibrate", str(place / "photographs"))
    assert build(place, "resnet18", *wanted, "--min-agreement", "0.5") == 0
    printed = capsys.readouterr().out
    path = place / "store" / "resnet18.mar"
    proof = proofs_of(path)["int8"]
    assert f"resnet18.mar: int8: {proof}\n" in printed
    assert "photographs: 1 of 49 inputs are left out: notes.txt: " in printed
    assert (proof.measure, proof.samples, proof.least) == ("top-1", 12, 0.5)
    assert proof.largest_change is not None
    assert 0 < proof.largest_change < 0.5
    built = build_json(path)
    assert {GRAPH, INT8_GRAPH, "model-int8.bin"} <= set(built["files"])
    assert {GRAPH, INT8_GRAPH, "model-int8.bin"} <= set(built["names"])
    # On a machine that is busy fewer of the 36 calibrate.
    assert 32 <= built["label"].pop("int8_calibrated_on") <= 36
    assert built["label"] == {"int8_layers_in_floating_point": 0}
    before = path.stat().st_mtime_ns
    assert build(place, "resnet18", *wanted, "--min-agreement", "0.5") == 0
    assert capsys.readouterr().out.endswith("resnet18.mar: up to date\n")
    assert path.stat().st_mtime_ns == before


def test_encoder_in_int8_proves_itself_and_one_that_is_not_near_leaves_the_old_archive(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The search finds nothing here; how it finds is test_int8.py's.
    monkeypatch.setattr(int8, "TUNING", replace(int8.TUNING, ranking_s=3.0))
    texts = place / "texts.txt"
    lines = [line for line in TEXTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    texts.write_text("\n".join(lines[:60]), encoding="utf-8")
    held_out = place / "held-out.txt"
    held_out.write_text("\n".join(lines[60:80]), encoding="utf-8")
    wanted = ("--precision", "int8", "--calibrate", str(texts), "--validate", str(held_out))
    assert build(place, "sentence-embedding", *wanted, "--min-agreement", "0.9") == 0
    path = place / "store" / "sentence-embedding.mar"
    proof = proofs_of(path)["int8"]
    assert (proof.measure, proof.samples) == ("cosine", 20)
    assert 0.95 < proof.agreement < 0.99999
    capsys.readouterr()
    before = path.stat().st_mtime_ns
    # No layer in int8 is exact.
    assert build(place, "sentence-embedding", *wanted, "--min-agreement", "1") == 1
    told = capsys.readouterr()
    assert "looking among" in told.out
    assert "less than --min-agreement 1, so nothing was built" in told.err
    assert "int8: cosine 0.9" in told.err
    assert path.stat().st_mtime_ns == before
