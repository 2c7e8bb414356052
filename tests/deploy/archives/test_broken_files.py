"""Files that are cut short, not what their names say, or do not belong together: each is rejected in one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import sentencepiece
import torch
import torchvision
import transformers

from deploy.archives.__main__ import main
from deploy.archives.networks import read_labels
from deploy.archives.sources import WeightsUnavailable
from deploy.archives.tasks import load_task
from deploy.models import ModelEntry
from handlers.checkpoints import load_tokenizer
from handlers.errors import InvalidConfig
from handlers.text.config import TextClassificationConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.tables import table
from tests.tensor_files import scaled_onnx, scaled_pt2
from tests.tiny_models import change_json, checkpoint, staged

ARCH, NAMES = "squeezenet1_1", "index_to_name.json: "
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json")


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def save_state(path: Path) -> None:
    state = torchvision.models.get_model(ARCH, weights=None, num_classes=2).state_dict()
    safetensors.torch.save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)


@pytest.mark.builds
@pytest.mark.parametrize("change", [halve, lambda path: path.write_bytes(b"")], ids=["halved", "empty"])
@table(
    ("w.pth", save_state, "w.pth is not a whole file of PyTorch or safetensors"),
    ("w.safetensors", save_state, "w.safetensors is not a whole file of PyTorch or"),
    ("m.onnx", scaled_onnx, "ONNX Runtime cannot read it: "),
    ("m.pt2", scaled_pt2, "own: m.pt2: it is not a whole program of torch.export.save"),
    ("m.ftz", lambda path: path.write_bytes(bytes(64)), "m.ftz: not a whole fastText model"),
)
def test_broken_weights_are_rejected(name: str, write: Any, words: str, change: Any, archive_sh: ArchiveSh) -> None:
    handler = {"w": "image_classification", "m": "tensors"}[name[0]] if name != "m.ftz" else "language_id"
    archive_sh.write_list("own", handler, name, {"arch": ARCH} if handler == "image_classification" else None)
    write(archive_sh.folder / name)
    change(archive_sh.folder / name)
    assert words in archive_sh.rejected("own")


@table(
    *((f"weights/{name}", halve, f"weights: {name}: not valid JSON") for name in JSON_FILES),
    ("weights/model.safetensors", halve, "weights: model.safetensors: not a whole file of safetensors"),
    ("weights/config.json", lambda path: path.write_text("{}"), "/weights: the model cannot be loaded: "),
    ("weights/config.json", lambda path: path.write_text("[]"), "weights: config.json: not a JSON object; save or"),
    ("own/request.json", lambda path: path.write_text("{"), "request.json: not valid JSON"),
    ("own/samples.txt", lambda path: path.write_bytes(b"\xff"), "own: samples.txt: not UTF-8"),
)
def test_broken_file_beside_a_checkpoint_is_rejected(name: str, change: Any, words: str, archive_sh: ArchiveSh) -> None:
    weights = checkpoint(archive_sh.folder / "weights", "bert", "text_classification", labels=("NO", "YES"))
    (weights / "modules.json").write_text('[{"path": ""}]')
    task = "translation" if "samples" in name else "text_classification"
    archive_sh.write_list("own", task, "weights", {"threads": 1})
    change(archive_sh.folder / name)
    is_own = name.startswith("own/")
    arguments = ["own", "--engine", "torch" if is_own else "auto"]
    assert words in archive_sh.rejected(*arguments)
    with pytest.raises(InvalidConfig if is_own or "loaded" in words else WeightsUnavailable):
        main(archive_sh.arguments(*arguments, "--debug"))


@table(
    *((text, 2, f"{NAMES}not a JSON object of names by n") for text in (b'{"0": ', b'["a", "b"]', b'{"0": "\xff"}')),
    (b'{"a": 0, "b": 1}', 2, f"{NAMES}class 0 has no name; the file needs"),
    (b'{"0": "a", "2": "b"}', 2, f"{NAMES}class 1 has no name; the file needs"),
    (b'{"0": ["n1", "a", "b"], "1": "b"}', 2, f"{NAMES}class 0 has no name; the file needs"),
    (b'{"0": "a", "1": "a", "2": "a (0)"}', 3, "several classes have the name a; give each its own"),
    (b'{"0": "a", "1": "b"}', 3, r".*3 classes; name them in own/index_to_name\.json, from 0 to 2: .*; there"),
)
def test_broken_labels_are_rejected_by_name(
    text: bytes, count: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (own := Path("own")).mkdir()
    (own / "index_to_name.json").write_bytes(text)
    with pytest.raises(WeightsUnavailable if "there" in words else InvalidConfig, match=f"^own: {words}"):
        read_labels(ModelEntry("own", "image_classification", "1", own), ARCH, count)


@table(
    # As in TorchServe's own file for ImageNet, which has two cranes and two maillots.
    ([["n1", "crane"], ["n2", "tench"], ["n3", "crane"]], ["crane (n1)", "tench", "crane (n3)"], "WordNet ids"),
    ([["n0", "rose"], ["n0", "tulip"], ["n0", "rose"]], ["rose (0)", "tulip", "rose (2)"], "numbers added"),
    (["rose", "tulip", "rose"], ["rose (0)", "tulip", "rose (2)"], "numbers added: rose (0), rose (2)"),
    (["rose", "tulip", "lily"], ["rose", "tulip", "lily"], ""),
)
def test_shared_names_become_unique(names: Any, labels: Any, words: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "index_to_name.json").write_text(json.dumps(dict(enumerate(names))))
    assert read_labels(ModelEntry("own", "image_classification", "1", tmp_path), ARCH, 3) == labels
    printed = capsys.readouterr().out
    assert words in printed and bool(printed) is bool(words)


def configured(**changes: object) -> Callable[[Path], object]:
    return lambda folder: change_json(folder / "config.json", **changes)


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no head": (
        lambda folder: transformers.AutoModel.from_pretrained(folder).save_pretrained(folder),
        "the weights lack classifier.bias, classifier.weight, which AutoModelForSequenceClass",
    ),
    "two labels": (configured(id2label=dict(enumerate("ab"))), "config.json names 2 labels, the model has 6 outputs"),
    "gaps": (configured(id2label={**dict(enumerate("abcde")), 9: "j"}), "id2label has 6 labels, but none for 5"),
    "too few layers": (configured(num_hidden_layers=1), "config.json has fewer layers than the weights"),
    "too many layers": (configured(num_hidden_layers=3), "the weights lack bert.encoder.layer.2."),
    "another width": (configured(intermediate_size=128), "has shape [64] in the weights, and [128] by config.json"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
    "an adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "merge_and_unload()"),
    "a pickle alone": (lambda folder: (folder / "model.safetensors").rename(folder / "m.bin"), "a pickle is read only"),
}


@pytest.mark.builds
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_checkpoint_whose_files_do_not_belong_together_is_rejected(mistake: str, archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("own", "text_classification", config={})
    weights = checkpoint(folder / "weights", "bert", "text_classification")
    make, words = MISTAKES[mistake]
    make(weights)
    assert words in archive_sh.rejected("own", "--weights", str(weights), "--engine", "openvino")


@table(
    ("object_detection", "Detr", "rt_detr"),
    ("object_detection", "Yolos", "rt_detr"),
    ("image_segmentation", "MaskFormer", "segformer"),
)
def test_network_of_another_family_is_rejected(task: str, kind: str, family: str, archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("own", task, config={})
    getattr(transformers, f"{kind}Config")().save_pretrained(folder)
    getattr(transformers, f"{kind}ImageProcessor")().save_pretrained(folder)
    safetensors.torch.save_file({}, folder / "model.safetensors")
    rejection = archive_sh.rejected("own", "--weights", str(folder))
    assert rejection.startswith(f"own: {kind.lower()} is not supported by this task; supported families are {family}, ")
    assert rejection.endswith("with torch.onnx.export, and serve the file with task: tensors")


@pytest.mark.builds
def test_archive_whose_labels_are_not_its_graphs_outputs_is_not_loaded(tmp_path: Path) -> None:
    folder = staged(tmp_path, "distilbert", "text_classification")
    config = folder / "checkpoint" / "config.json"
    content = json.loads(config.read_text()) | {"id2label": dict(enumerate("ab"))}
    config.unlink()
    config.write_text(json.dumps(content))
    with pytest.raises(InvalidConfig, match="has 2 labels, and its model 6 outputs"):
        load_task("text_classification", folder, TextClassificationConfig(engine="openvino"))


def test_folder_with_a_bare_sentencepiece_model_has_a_tokenizer(tmp_path: Path) -> None:
    lines = iter(Path("tests/sentences_en.txt").read_text().splitlines())
    settings: Any = {"model_prefix": str(tmp_path / "spiece"), "vocab_size": 300, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, **settings)
    transformers.T5Config().save_pretrained(tmp_path)
    ids = load_tokenizer(tmp_path)("The bridge held.", add_special_tokens=False)["input_ids"]
    assert ids == sentencepiece.SentencePieceProcessor(str(tmp_path / "spiece.model")).encode("The bridge held.")
