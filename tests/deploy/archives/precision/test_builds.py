"""archive.sh and precisions: int8 made, proven and found again; refused below the bar; what it must be given.

NNCF is in a separate environment, which tests/nightly/test_int8.py uses; these tests use a simple quantiser.
"""

import json
from pathlib import Path
from typing import Any

import openvino
import pytest
from openvino import opset13 as opset

from deploy.archives.precision import int8
from deploy.archives.precision.quantise import samples
from deploy.models import MODEL_LIST
from tests import tiny_models
from tests.deploy.archives.conftest import ArchiveSh
from tests.tables import table

pytestmark = pytest.mark.builds

TEXTS = [f"The ferry was late on day {number}, and {number * 7} people waited in the rain." for number in range(24)]


def coarse(source: Path, inputs: Path, out: Path, _kind: str) -> None:
    """Round what each product of matrices is given to 64 values."""
    graph = openvino.Core().read_model(source)
    assert len([*samples(inputs)]) >= 10
    for operation in graph.get_ordered_ops():
        if operation.get_type_name() == "MatMul":
            bounds = [opset.constant(bound, dtype="float32") for bound in (-4, 4, -4, 4)]
            rounding = opset.fake_quantize(operation.input_value(0), *bounds, 64)
            operation.input(0).replace_source_output(rounding.output(0))
    openvino.save_model(graph, out, compress_to_fp16=False)


@pytest.fixture(autouse=True)
def _quantiser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "quantise", coarse)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.checkpoint(tmp_path_factory.mktemp("tiny"), "bert", "sentence_embedding"))


def wanted(archive_sh: ArchiveSh, checkpoint: str, count: int = len(TEXTS), handler: str = "sentence_embedding") -> Any:
    """A tiny model, and texts to calibrate with, of which one is none; returns the arguments of a build with int8."""
    archive_sh.write_list("tiny", handler, config={})
    folder = archive_sh.folder / "texts"
    folder.mkdir()
    for number, text in enumerate(TEXTS[:count]):
        (folder / f"{number:02}.txt").write_text(text)
    (folder / "broken.txt").write_bytes(b"\xff\xfe")
    arguments = ["tiny", "--weights", checkpoint, "--engine", "openvino"]
    return [*arguments, "--precision", "int8", "--calibrate", str(folder)]


def test_int8_is_proven_found_again_and_refused_below_the_bar(archive_sh: ArchiveSh, checkpoint: str) -> None:
    arguments = wanted(archive_sh, checkpoint)
    lines, build = archive_sh(*arguments, "--min-agreement", "0.5"), archive_sh.build("tiny")
    assert {"model.xml", "model-int8.xml", "model-int8.bin"} <= set(build["files"])
    assert any("texts: 1 of 25 inputs are left out: broken.txt: " in line for line in lines)
    assert build["label"] == {"int8_calibrated_on": 18}
    proof = build["proofs"]["int8"]
    assert (proof["measure"], proof["samples"], proof["least"]) == ("vectors", 6, 0.5)
    assert 0.5 < proof["agreement"] < 1
    assert any(f"tiny: int8: vectors {proof['agreement']:.4f} of 6 samples" in line for line in lines)
    has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert ("bf16" in build["proofs"]) is has_bf16
    assert archive_sh(*arguments, "--min-agreement", "0.5") == [f"{lines[-1].partition(': ')[0]}: up to date"]
    refusal = archive_sh.refused(*arguments, "--min-agreement", "1")
    assert refusal.startswith(f"tiny: int8: vectors {proof['agreement']:.4f} of 6 samples")
    assert "less than --min-agreement 1, so nothing was built" in refusal
    assert archive_sh.build("tiny") == build


def test_labels_prove_int8_by_accuracy(archive_sh: ArchiveSh, tmp_path: Path) -> None:
    checkpoint = tiny_models.checkpoint(tmp_path / "tiny", "bert", "text_classification")
    arguments = wanted(archive_sh, str(checkpoint), handler="text_classification")
    labelled = tmp_path / "labelled.txt"
    labelled.write_text("\n".join(json.dumps({"text": text, "label": 0}) for text in TEXTS))
    assert "tiny: int8: accuracy " in archive_sh.refused(*arguments, "--validate", str(labelled))
    archive_sh(*arguments, "--validate", str(labelled), "--min-agreement", "0")
    proof = archive_sh.build("tiny")["proofs"]["int8"]
    assert (proof["measure"], proof["samples"], "in fp32" in proof["detail"]) == ("accuracy", len(TEXTS), True)
    labelled.write_text('{"text": "one", "label": 0}\n{"text": "two"}\n')
    assert "1 of 2 inputs to validate with have no class" in archive_sh.refused(*arguments, "--validate", str(labelled))


def test_too_few_inputs_or_none_that_the_model_takes_are_one_line(archive_sh: ArchiveSh, checkpoint: str) -> None:
    words = "tiny: --calibrate: 9 inputs; at least 10 are needed"
    assert archive_sh.refused(*wanted(archive_sh, checkpoint, 9)) == words
    broken = archive_sh.folder / "broken"
    broken.mkdir()
    (broken / "one.txt").write_bytes(b"\xff\xfe")
    asked = ["tiny", "--weights", checkpoint, "--engine", "openvino", "--validate", str(broken)]
    assert f"{broken}: the model accepts none of the 1 inputs: one.txt: " in archive_sh.refused(*asked)


@table(
    ("mobilenet-v2", {}, "needs --calibrate FOLDER, of images, at least 10"),
    ("translation", {}, "translation runs in int8 by itself"),
    ("mobilenet-v2", {"engine": "torch", "calibrate": "photographs"}, "leave out --engine torch"),
    ("mobilenet-v2", {"calibrate": "empty"}, "empty: no inputs in it"),
    ("mobilenet-v2", {"calibrate": "texts"}, "expected a folder of images"),
    ("sentence-embedding", {"calibrate": "texts", "validate": "texts"}, "name other inputs for --validate"),
)
def test_impossible_precision_is_refused(name: str, given: dict[str, str], words: str, archive_sh: ArchiveSh) -> None:
    for folder in ("photographs", "empty"):
        (archive_sh.folder / folder).mkdir()
    (archive_sh.folder / "photographs" / "one.jpg").write_bytes(b"\xff\xd8")
    (archive_sh.folder / "texts").write_text("A text.\n")
    options = ["--models", str(MODEL_LIST), "--precision", "int8"]
    for option, value in given.items():
        options += [f"--{option}", value if option == "engine" else str(archive_sh.folder / value)]
    assert words in archive_sh.refused(name, *options) and not archive_sh.store.exists()
