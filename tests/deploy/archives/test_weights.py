"""Weights: read without running code, random ones marked, and one line where they cannot be had or do not fit."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.models import MODEL_LIST
from tests.deploy.archives.conftest import ArchiveSh

# The cheapest of torchvision with batch norms, whose random statistics are made up.
SMALL = "shufflenet_v2_x0_5"
HEAD = {"fc.weight": torch.zeros(3, 1024), "fc.bias": torch.zeros(3)}


class Running:
    """An object whose pickle contains a call, which runs on loading."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize(
    ("handler", "file", "words"),
    [
        ("image_classification", "weights.pt", "weights.pt is not a whole file of PyTorch or safetensors"),
        ("sentence_embedding", "pytorch_model.bin", "pytorch_model.bin is not a whole file of PyTorch or safetensors"),
        ("tensors", "m.pt", "m.pt: it is not a whole file of TorchScript"),
        ("tensors", "m.pt2", "m.pt2: it is not a whole program of torch.export.save"),
    ],
)
@pytest.mark.parametrize("is_plain", [True, False], ids=["pickle", "torch.save"])
def test_pickle_with_code_is_refused_and_its_code_is_not_run(
    handler: str, file: str, words: str, is_plain: bool, archive_sh: ArchiveSh
) -> None:
    config = {"arch": SMALL} if handler == "image_classification" else None
    folder = archive_sh.write_list("own", handler, config=config or {})
    (folder / "config.json").write_text("{}")
    mark = archive_sh.folder / "was-run"
    with (folder / file).open("wb") as weights:
        (pickle.dump if is_plain else torch.save)({"weight": Running(mark)}, weights)
    assert words in archive_sh.refused("own", "--weights", str(folder / file))
    assert not mark.exists()


def classifier(archive_sh: ArchiveSh, arch: str, state: dict[str, Any], labels: list[str] | None = None) -> list[str]:
    folder = archive_sh.write_list("flowers", "image_classification", config={"arch": arch})
    # As a training run leaves them: DistributedDataParallel's names, and the labels of TorchServe's own example.
    trained = {"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}
    torch.save(trained, folder / "checkpoint.pt")
    if labels is not None:
        named = {str(index): ["n0", label] for index, label in enumerate(labels)}
        (folder / "index_to_name.json").write_text(json.dumps(named))
    return ["flowers", "--weights", str(folder / "checkpoint.pt"), "--engine", "torch"]


@pytest.mark.parametrize(
    ("arch", "state", "labels", "words"),
    [
        (SMALL, HEAD, None, "flowers: the weights have 3 classes; name them in "),
        (SMALL, HEAD, ["a", "b", "c"], f"the weights are not those of {SMALL}: they lack conv1.0.weight, conv1.1.bi"),
        ("resnet19", HEAD, ["a", "b", "c"], "flowers: arch: resnet19 is not a classifier of torchvision.models"),
        (SMALL, {"epoch": 3}, None, "checkpoint.pt is not a state dict: it contains no mapping of names to tensors"),
    ],
)
def test_weights_that_do_not_fit_are_one_line(
    arch: str, state: dict[str, Any], labels: list[str] | None, words: str, archive_sh: ArchiveSh
) -> None:
    assert words in archive_sh.refused(*classifier(archive_sh, arch, state, labels))
    missing = archive_sh.refused("flowers", "--weights", "my/missing.pt")
    assert missing.startswith("flowers: no file my/missing.pt; use --weights PATH")


@pytest.mark.builds
def test_random_weights_are_marked_untrained_loudly_and_are_always_the_same(archive_sh: ArchiveSh) -> None:
    archive_sh.write_list("own", "image_classification", config={"arch": SMALL, "resize_size": 72, "crop_size": 64})
    states = []
    for cache in ("one", "two"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CACHE_DIR", str(archive_sh.folder / cache))
            lines = archive_sh("own", "--weights", "random", "--engine", "torch", "--force")
        assert any("version 3-untrained" in line for line in lines)
        assert "UNTRAINED: random weights, so its answers mean nothing" in archive_sh.err
        states.append(torch.load(archive_sh.store / "own" / "model.pt", weights_only=True))
        # Exports lie where CACHE_DIR says, and an archive tells its version.
        assert list((archive_sh.folder / cache).rglob("model.pt"))
        manifest = json.loads((archive_sh.store / "own" / "MAR-INF" / "MANIFEST.json").read_text())
        assert manifest["model"]["modelVersion"] == "3-untrained"
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_published_weights_without_a_network_say_what_to_give(
    archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An empty download cache, and a proxy where nothing listens.
    monkeypatch.setenv("TORCH_HOME", str(archive_sh.folder))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    line = archive_sh.refused("resnet-152", "--models", str(MODEL_LIST))
    assert line.startswith("resnet-152: cannot fetch https://")
    assert line.endswith("use --weights PATH, a state dict, or --weights random for an untrained demo")
