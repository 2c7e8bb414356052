"""Files that are cut short, or not what their names say: each is refused by its name in one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision

from deploy.archives.__main__ import main
from deploy.archives.sources import WeightsUnavailable
from deploy.archives.stagers.vision import read_labels
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.tensor_files import scaled_onnx, scaled_pt2
from tests.tiny_models import checkpoint

ARCH = "squeezenet1_1"


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def save_state(path: Path) -> None:
    state = torchvision.models.get_model(ARCH, weights=None, num_classes=2).state_dict()
    safetensors.torch.save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)


@pytest.mark.builds
@pytest.mark.parametrize("change", [halve, lambda path: path.write_bytes(b"")], ids=["halved", "empty"])
@pytest.mark.parametrize(
    ("handler", "name", "write", "words"),
    [
        ("image_classification", "w.pth", save_state, "w.pth is not a whole file of PyTorch or safetensors"),
        ("image_classification", "w.safetensors", save_state, "w.safetensors is not a whole file of PyTorch or"),
        ("tensors", "m.onnx", scaled_onnx, "ONNX Runtime cannot read it: "),
        ("tensors", "m.pt2", scaled_pt2, "own: m.pt2: it is not a whole program of torch.export.save"),
        ("language_id", "m.ftz", lambda path: path.write_bytes(bytes(64)), "m.ftz: not a whole fastText model"),
    ],
)
def test_broken_weights_are_refused_by_name(  # noqa: PLR0917
    handler: str,
    name: str,
    write: Callable[[Path], object],
    words: str,
    change: Callable[[Path], object],
    archive_sh: ArchiveSh,
) -> None:
    archive_sh.write_list("own", handler, name, {"arch": ARCH} if handler == "image_classification" else None)
    write(archive_sh.folder / name)
    change(archive_sh.folder / name)
    assert words in archive_sh.refused("own")


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "modules.json"]
)
def test_broken_file_of_a_checkpoint_is_refused_by_name(name: str, archive_sh: ArchiveSh) -> None:
    weights = checkpoint(archive_sh.folder / "weights", "bert", "text_classification", labels=("NO", "YES"))
    (weights / "modules.json").write_text('[{"path": ""}]')
    halve(weights / name)
    archive_sh.write_list("own", "text_classification", "weights", {})
    kind = "a whole file of safetensors" if name.endswith(".safetensors") else "valid JSON"
    assert f"weights: {name}: not {kind}" in archive_sh.refused("own")
    with pytest.raises(WeightsUnavailable):
        main(archive_sh.arguments("own", "--debug"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"0": ', "own: index_to_name.json: not a JSON object of names by number"),
        (b'["a", "b"]', "own: index_to_name.json: not a JSON object of names by number"),
        (b'{"0": "\xff"}', "own: index_to_name.json: not a JSON object of names by number"),
        (b'{"a": 0, "b": 1}', "own: index_to_name.json: class 0 has no name; the file needs"),
        (b'{"0": "a", "2": "b"}', "own: index_to_name.json: class 1 has no name; the file needs"),
        (b'{"0": ["n1", "a", "b"], "1": "b"}', "own: index_to_name.json: class 0 has no name; the file needs"),
    ],
)
def test_broken_labels_are_refused_by_name(text: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "index_to_name.json").write_bytes(text)
    with pytest.raises(InvalidConfig) as raised:
        read_labels(ModelEntry("own", "image_classification", "1", tmp_path), ARCH, 2)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(
    ("names", "labels", "words"),
    [
        # As in TorchServe's own file for ImageNet, which has two cranes and two maillots.
        ([["n1", "crane"], ["n2", "tench"], ["n3", "crane"]], ["crane (n1)", "tench", "crane (n3)"], "WordNet ids"),
        ([["n0", "rose"], ["n0", "tulip"], ["n0", "rose"]], ["rose (0)", "tulip", "rose (2)"], "numbers added"),
        (["rose", "tulip", "rose"], ["rose (0)", "tulip", "rose (2)"], "numbers added: rose (0), rose (2)"),
        (["rose", "tulip", "lily"], ["rose", "tulip", "lily"], ""),
    ],
)
def test_names_that_classes_share_become_unique_and_the_build_prints_it(
    names: list[object], labels: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index_to_name.json").write_text(json.dumps({str(number): name for number, name in enumerate(names)}))
    assert read_labels(ModelEntry("own", "image_classification", "1", tmp_path), ARCH, 3) == labels
    printed = capsys.readouterr().out
    assert words in printed
    assert bool(printed) is bool(words)


def test_labels_that_stay_alike_are_refused(tmp_path: Path) -> None:
    (tmp_path / "index_to_name.json").write_text('{"0": "a", "1": "a", "2": "a (0)"}')
    with pytest.raises(InvalidConfig, match="several classes have the name a; give each its own"):
        read_labels(ModelEntry("own", "image_classification", "1", tmp_path), ARCH, 3)


@pytest.mark.parametrize(
    ("name", "handler", "content", "words"),
    [
        ("request.json", "text_classification", "{", "request.json: not valid JSON"),
        ("samples.txt", "translation", "\xff", "own: samples.txt: not UTF-8"),
    ],
)
def test_broken_samples_are_refused_by_name(
    name: str, handler: str, content: str, words: str, archive_sh: ArchiveSh
) -> None:
    checkpoint(archive_sh.folder / "weights", "bert", "text_classification", labels=("NO", "YES"))
    folder = archive_sh.write_list("own", handler, "weights", {"threads": 1})
    (folder / name).write_bytes(content.encode("latin-1"))
    assert words in archive_sh.refused("own", "--engine", "torch")


@pytest.mark.parametrize(("name", "text"), [("config.json", "[]"), ("config.json", "{}")])
def test_checkpoint_that_transformers_cannot_load_is_refused_by_its_path(
    name: str, text: str, archive_sh: ArchiveSh
) -> None:
    weights = checkpoint(archive_sh.folder / "weights", "bert", "text_classification", labels=("NO", "YES"))
    (weights / name).write_text(text)
    archive_sh.write_list("own", "text_classification", "weights", {})
    assert f"own: {weights}: the model cannot be loaded: " in archive_sh.refused("own")
