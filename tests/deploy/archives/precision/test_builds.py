"""archive.sh's proofs: an archive answers as its model does, and int8 is made, proven, found again or rejected.

NNCF is in a separate environment, which tests/nightly/test_int8.py uses; these tests use a simple quantiser.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
import transformers
from openvino import opset13 as opset

from deploy.archives.precision import int8, prove
from deploy.archives.precision.quantise import samples
from deploy.archives.sources import source
from deploy.archives.tasks import image_classification, load_task, object_detection
from deploy.models import MODEL_LIST, ModelEntry
from handlers.batching import accuracy
from handlers.config import parse
from handlers.errors import InvalidConfig, Unfaithful
from handlers.pipeline.task import decode
from handlers.precision.answers import VECTORS, run_items
from handlers.precision.samples import SAMPLES, read_samples
from handlers.protocol.requests import Payload
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.text.config import TextClassificationConfig
from handlers.text.handler import TextHandler
from handlers.vision.preprocessing import Preprocessing
from tests import tiny_detector, tiny_models
from tests.deploy.archives.conftest import ArchiveSh
from tests.handlers.serving import started
from tests.nightly import families, image_families
from tests.tables import table
from tests.tiny_image_text import VISION
from tests.tiny_models import change_json

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


def test_int8_is_proven_found_again_and_rejected_below_the_bar(archive_sh: ArchiveSh, checkpoint: str) -> None:
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
    rejection = archive_sh.rejected(*arguments, "--min-agreement", "1")
    assert rejection.startswith(f"tiny: int8: vectors {proof['agreement']:.4f} of 6 samples")
    assert "less than --min-agreement 1, so nothing was built" in rejection
    assert archive_sh.build("tiny") == build


def test_int8_from_another_processor_is_compared_by_the_worker_with_samples_of_this_project(
    archive_sh: ArchiveSh, checkpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = [*wanted(archive_sh, checkpoint), "--min-agreement", "0.5"]
    own = "A text of the owner's, which others must not get."
    (archive_sh.folder / "tiny" / "request.json").write_text(json.dumps({"text": own}))
    archive_sh(*arguments)
    folder, build = archive_sh.store / "tiny", archive_sh.build("tiny")
    kept = read_samples(folder, VECTORS)
    assert SAMPLES in build["files"] and kept is not None and len(kept.answers) >= 20
    assert not {own, *TEXTS} & {each.value for each in kept.payloads}
    monkeypatch.setenv("CACHE_DIR", str(archive_sh.folder / "cache"))
    for place, count in ((kept.place, 6), ("another processor", len(kept.answers))):
        monkeypatch.setattr(accuracy, "name_place", lambda place=place: place)
        settings = {"precision": "auto", "engine": "openvino", "scheduling": {"mode": "classic"}}
        handler = started(SentenceEmbeddingHandler(), folder, settings)
        proof = handler.archive.metadata.proofs["int8"]
        assert (proof["samples"], proof["least"]) == (count, 0.5) and 0.5 < proof["agreement"] < 1
    assert caplog.text.count("Compared int8 with fp32 on this processor: vectors ") == 1


def test_labels_prove_int8_by_accuracy(archive_sh: ArchiveSh, tmp_path: Path) -> None:
    checkpoint = tiny_models.checkpoint(tmp_path / "tiny", "bert", "text_classification")
    arguments = wanted(archive_sh, str(checkpoint), handler="text_classification")
    labelled = tmp_path / "labelled.txt"
    labelled.write_text("\n".join(json.dumps({"text": text, "label": 0}) for text in TEXTS))
    assert "tiny: int8: accuracy " in archive_sh.rejected(*arguments, "--validate", str(labelled))
    archive_sh(*arguments, "--validate", str(labelled), "--min-agreement", "0")
    proof = archive_sh.build("tiny")["proofs"]["int8"]
    assert (proof["measure"], proof["samples"], "in fp32" in proof["detail"]) == ("accuracy", len(TEXTS), True)
    labelled.write_text('{"text": "one", "label": 0}\n{"text": "two"}\n')
    assert "1 of 2 inputs to validate with have no class" in archive_sh.rejected(
        *arguments, "--validate", str(labelled)
    )


def test_too_few_inputs_or_none_that_the_model_takes_are_one_line(archive_sh: ArchiveSh, checkpoint: str) -> None:
    words = "tiny: --calibrate: 9 inputs; at least 10 are needed"
    assert archive_sh.rejected(*wanted(archive_sh, checkpoint, 9)) == words
    broken = archive_sh.folder / "broken"
    broken.mkdir()
    (broken / "one.txt").write_bytes(b"\xff\xfe")
    asked = ["tiny", "--weights", checkpoint, "--engine", "openvino", "--validate", str(broken)]
    assert f"{broken}: the model accepts none of the 1 inputs: one.txt: " in archive_sh.rejected(*asked)


@table(
    ("mobilenet-v2", {}, "needs --calibrate FOLDER, of images, at least 10"),
    ("translation", {}, "translation runs in int8 by itself"),
    ("mobilenet-v2", {"engine": "torch", "calibrate": "photographs"}, "leave out --engine torch"),
    ("mobilenet-v2", {"calibrate": "empty"}, "empty: no inputs in it"),
    ("mobilenet-v2", {"calibrate": "texts"}, "expected a folder of images"),
    ("sentence-embedding", {"calibrate": "texts", "validate": "texts"}, "name other inputs for --validate"),
)
def test_impossible_precision_is_rejected(name: str, given: dict[str, str], words: str, archive_sh: ArchiveSh) -> None:
    for folder in ("photographs", "empty"):
        (archive_sh.folder / folder).mkdir()
    (archive_sh.folder / "photographs" / "one.jpg").write_bytes(b"\xff\xd8")
    (archive_sh.folder / "texts").write_text("A text.\n")
    options = ["--models", str(MODEL_LIST), "--precision", "int8"]
    for option, value in given.items():
        options += [f"--{option}", value if option == "engine" else str(archive_sh.folder / value)]
    assert words in archive_sh.rejected(name, *options) and not archive_sh.store.exists()


TRACED = ["the river", "Anna Berg kept the inn at Lindau.", "the mayor wrote a letter " * 12, "x", "stone " * 40]
MARKED = ["the </s> river </s> rose", "</s> [SEP] <s>", "a wall </s>", "[SEP] Anna [SEP]"]  # a client's special tokens
# A classifier with a branch on the number of its tokens, which a trace does not see.
BRANCH = """
from transformers import DistilBertForSequenceClassification
class Own(DistilBertForSequenceClassification):
    def forward(self, input_ids=None, attention_mask=None, **options):
        result = super().forward(input_ids=input_ids, attention_mask=attention_mask, **options)
        if input_ids.shape[1] > 20:
            result["logits"] = -result["logits"]
        return result
"""


def built(archive_sh: ArchiveSh, weights: Path, *arguments: str, **config: Any) -> dict[str, Any]:
    archive_sh.write_list("own", "text_classification", config={"threads": 1, **config})
    archive_sh("own", "--weights", str(weights), *arguments)
    return dict(archive_sh.config("own")["handler"])


@table(
    ("convbert", "auto", "exact"),  # its convolutions see padding
    ("gpt2:unpadded", "auto", None),
    ("xlnet", "torch", None),  # padded on the left
)
def test_family_answers_as_transformers(family: str, engine: str, padding: str | None, archive_sh: ArchiveSh) -> None:
    """tests/nightly/test_families.py has the others."""
    weights = archive_sh.folder / "weights"
    families.save(family, "AutoModelForSequenceClassification", weights)
    settings = built(archive_sh, weights, "--engine", engine)
    assert (settings["engine"], settings.get("padding")) == (engine, padding)
    assert archive_sh.build("own")["fidelity"]["largest_error"] < 1e-3
    config = parse(TextClassificationConfig, {**settings, "precision": "fp32"})
    task = load_task("text_classification", archive_sh.store / "own", config)
    assert_equal(task, weights)


def assert_equal(task: Any, weights: Path) -> None:
    """Compare texts in micro-batches with the model's own answers to each of them."""
    texts = [*TRACED, *MARKED]
    items = task.prepare([decode(task, Payload(text)) for text in texts])
    answers = run_items(task, items, lambda _task, outputs, _items: [*outputs["logits"]], len(items))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(weights).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    for text, answer in zip(texts, answers, strict=True):
        with torch.no_grad():
            (expected,) = model(**tokenizer(text, return_tensors="pt")).logits.numpy()
        np.testing.assert_allclose(answer, expected, 0, 1e-3 * np.abs(expected).max())


def test_model_that_remembers_texts_is_rejected_and_few_tokens_are_compared(archive_sh: ArchiveSh) -> None:
    weights = archive_sh.folder / "weights"
    families.save("big_bird", "AutoModelForSequenceClassification", weights)
    archive_sh.write_list("own", "text_classification", config={"threads": 1})
    line = archive_sh.rejected("own", "--weights", str(weights), "--engine", "torch")
    assert "PyTorch differs from the model by " in line and "max_length: 40 in model-config.yaml" in line
    weights = tiny_models.checkpoint(archive_sh.folder / "few", "bert", "text_classification")
    change_json(weights / "tokenizer_config.json", model_max_length=5)
    built(archive_sh, weights, "--engine", "torch")
    assert re.search(r"of transformers on [1-9]\d* texts", archive_sh.build("own")["fidelity"]["said"])


def test_texts_with_other_numbers_of_end_tokens_do_not_move_each_other(
    archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, folder = archive_sh.folder / "weights", archive_sh.store / "own"
    families.save("bart", "AutoModelForSequenceClassification", weights)  # reads the state of the last </s>
    assert built(archive_sh, weights)["engine"] == "auto"
    config = TextClassificationConfig(threads=1, precision="fp32")
    assert_equal(load_task("text_classification", folder, config), weights)
    monkeypatch.setattr(TextHandler, "marks", lambda *_: 0)  # they share micro-batches, and the build notices
    entry = ModelEntry("own", "text_classification", "1", archive_sh.folder / "own")
    with pytest.raises(Unfaithful, match=r"OpenVINO (differs|fails).* a text with .*</s> twice"):
        prove.check(entry, source(entry, str(weights)), "openvino", folder, archive_sh.folder)


def test_longformer_finds_the_questions_end_and_is_served(archive_sh: ArchiveSh) -> None:
    weights = archive_sh.folder / "weights"
    families.save("longformer", "AutoModelForSequenceClassification", weights)
    config = transformers.AutoConfig.from_pretrained(weights, num_labels=2)
    transformers.LongformerForQuestionAnswering(config).save_pretrained(weights)
    archive_sh.write_list("own", "question_answering", config={"threads": 1})
    archive_sh("own", "--weights", str(weights))
    assert archive_sh.build("own")["fidelity"]["largest_error"] < 1e-3


def test_graph_without_a_branch_or_segments_is_rejected(archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tiny_models.checkpoint(
        archive_sh.folder / "weights", "distilbert", "text_classification", labels=("NO", "YES")
    )
    change_json(weights / "config.json", auto_map={"AutoModelForSequenceClassification": "own.Own"})
    (weights / "own.py").write_text(BRANCH)
    assert built(archive_sh, weights, trust_remote_code=True)["engine"] == "torch"
    line = archive_sh.rejected("own", "--weights", str(weights), "--engine", "openvino")
    assert "OpenVINO differs from the model by " in line
    assert "on a text of 33 tokens; max_length: 17" in line and "--engine torch" in line
    weights = tiny_models.checkpoint(archive_sh.folder / "bert", "bert", "question_answering")
    archive_sh.write_list("own", "question_answering", config={"threads": 1})
    monkeypatch.setattr("handlers.text.encoder_modules.INPUT_NAMES", ("input_ids", "attention_mask"))
    assert "own: OpenVINO differs from transformers by " in archive_sh.rejected("own", "--weights", str(weights))


def assert_faithful(entry: ModelEntry, weights: Path, other: Path, folder: Path, tmp_path: Path) -> None:
    """Compare an archive with its weights, with which it agrees, and with others, with which it does not."""
    prove.check(entry, source(entry, str(weights)), "openvino", folder, tmp_path)
    said = json.loads((tmp_path / "fidelity.json").read_text())
    assert said["engine"] == "openvino" and 0 < said["largest_error"] < 1e-4
    assert "640x480, 480x640, 61x333, 9x7, 1x1, 900x60 one by one and together" in said["said"]
    with pytest.raises(Unfaithful, match=r"OpenVINO differs from the model by .* on a picture of 640x480"):
        prove.check(entry, source(entry, str(other)), "openvino", folder, tmp_path)


def test_only_an_archives_own_weights_and_pixels_agree(tmp_path: Path) -> None:
    own, folder = tmp_path / "own", tmp_path / "archive"
    for path in (own, folder):
        path.mkdir()
    weights = image_families.save("resnet18", own)
    settings = {"arch": "resnet18", "resize_size": 72, "crop_size": 64}
    (own / "model-config.yaml").write_text(json.dumps({"handler": settings}))
    (own / "index_to_name.json").write_text(json.dumps(dict(enumerate("abc"))))
    entry = ModelEntry("tiny", "image_classification", "1.0", own)
    image_classification.stage(entry, source(entry, str(weights)), "openvino", folder)
    state = torch.load(weights)
    torch.save({**state, "fc.bias": state["fc.bias"] + torch.tensor([0, 0.1, 0])}, tmp_path / "other.pt")
    assert_faithful(entry, weights, tmp_path / "other.pt", folder, tmp_path)
    preprocessing = Preprocessing.read(folder)
    Preprocessing(64, (64, 64), "bilinear", preprocessing.mean, preprocessing.std).write(folder)
    with pytest.raises(InvalidConfig, match=r"a picture of 640x480: pixels differ from .* by \d"):
        prove.check(entry, source(entry, str(weights)), "openvino", folder, tmp_path)


def test_detector_whose_scores_tie_agrees_as_a_set_and_one_with_other_weights_does_not(tmp_path: Path) -> None:
    weights, other, folder = places = [tmp_path / name for name in ("weights", "other", "archive")]
    for path in places:
        path.mkdir()
    tiny_detector.detector(weights)
    network = transformers.AutoModelForObjectDetection.from_pretrained(weights)
    network.config.num_queries = 20
    with torch.no_grad():
        network.model.enc_score_head.weight.zero_()
        network.save_pretrained(weights)
        network.model.decoder.class_embed[-1].bias[0] += 0.1
    network.save_pretrained(other)
    transformers.AutoImageProcessor.from_pretrained(weights).save_pretrained(other)
    entry = ModelEntry("tiny", "object_detection", "1.0", tmp_path)
    object_detection.stage(entry, source(entry, str(weights)), "openvino", folder)
    assert_faithful(entry, weights, other, folder, tmp_path)


@table(
    ({}, {"model_type": "timm_wrapper"}, "a model of timm, which is not installed here; export it with torch.onnx"),
    ({}, {"architecture": "resnet18", "pretrained_cfg": {}}, "serve the file with task: tensors"),
    ({"arch": "resnet18"}, {}, "arch: only for a state dict of torchvision, and not for"),
)
def test_folder_without_a_classifier_is_one_line(config: Any, files: Any, words: str, archive_sh: ArchiveSh) -> None:
    weights = archive_sh.folder / "weights"
    vit = transformers.ViTConfig(**{**VISION, "num_labels": 3})
    transformers.ViTForImageClassification(vit).save_pretrained(weights)
    if files:
        (weights / "config.json").write_text(json.dumps(files))
    archive_sh.write_list("own", "image_classification", config=config)
    assert words in archive_sh.rejected("own", "--weights", str(weights))
    if config:  # the file of weights names the same checkpoint
        assert words in archive_sh.rejected("own", "--weights", str(weights / "model.safetensors"))
