"""Weights in the forms that training programs save: each is loaded as it was, or refused in one line."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision

from deploy.archives.hub import open_checkpoint
from deploy.archives.sources import WeightsUnavailable, source
from deploy.archives.stagers.text import read_head
from deploy.archives.state_dicts import read_state
from deploy.archives.weights import count_classes, read_shapes
from deploy.models import ModelEntry
from handlers.text.encoder_modules import load_encoder
from handlers.vision.pixel_network import load_state
from tests.tiny_models import checkpoint as tiny_checkpoint

ARCH = "squeezenet1_1"
State = dict[str, torch.Tensor]


class Settings(dict[str, Any]):
    """As a training program's own class, which a server does not have."""


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


FORMS: dict[str, Callable[[State], Any]] = {
    "sorted": lambda state: dict(sorted(state.items())),
    "torch.compile in DistributedDataParallel": lambda state: prefixed(state, "module._orig_mod."),
    "FSDP": lambda state: {n.replace("squeeze.", "_fsdp_wrapped_module.squeeze."): t for n, t in state.items()},
    "tutorial": lambda state: {
        "model_state_dict": state,
        "optimizer": {"state": {0: {"step": 1}}},
        "best": np.float64(0.5),
    },
    "torchvision's reference": lambda state: {"model": state, "args": argparse.Namespace(lr=0.1, out=Path("/out"))},
    "Lightning": lambda state: {
        "state_dict": prefixed(state, "net.") | {"criterion.weight": torch.ones(5)},
        "hyper_parameters": Settings(lr=0.1),
    },
    "AveragedModel alone": lambda state: {"ema": prefixed(state, "module.") | {"n_averaged": torch.tensor(3)}},
    "two networks of which one fits": lambda state: {"model": state, "judge": {"a.weight": torch.ones(2)}},
}


def read(folder: Path, saved: Any) -> State:
    path = folder / "weights.pth"
    torch.save(saved, path)
    return read_state(ModelEntry("own", "image_classification", "1", folder), path, read_shapes(ARCH))


@pytest.mark.parametrize("form", FORMS)
def test_state_dict_of_any_form_is_loaded_as_it_was(form: str, tmp_path: Path) -> None:
    state = torchvision.models.get_model(ARCH, weights=None, num_classes=5).state_dict()
    found = read(tmp_path, FORMS[form](state))
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert count_classes(ModelEntry("own", "image_classification", "1", tmp_path), ARCH, found) == 5


def test_shapes_of_a_regnet_which_computes_its_widths_are_those_of_its_weights() -> None:
    own = torchvision.models.get_model("regnet_y_400mf", weights=None).state_dict()
    assert read_shapes("regnet_y_400mf") == {name: tensor.shape for name, tensor in own.items()}


def test_mnasnet_without_its_version_which_no_wrapper_keeps_computes_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torchvision.models.get_model("mnasnet0_5", weights=None, num_classes=5).eval()
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    state = read_state(ModelEntry("own", "image_classification", "1", tmp_path), path, ())
    loaded = load_state(torchvision.models.get_model("mnasnet0_5", weights=None, num_classes=5), state, "mnasnet0_5")
    image = torch.rand(1, 3, 64, 64)
    assert torch.equal(loaded(image), network(image))


def test_head_of_another_name_is_refused_with_the_names_of_its_tensors(tmp_path: Path) -> None:
    network = torchvision.models.get_model("resnet18", num_classes=5)
    network.fc = torch.nn.Sequential(torch.nn.Dropout(), network.fc)
    remedy = 'state["fc.weight"] = state.pop("fc.1.weight"); state["fc.bias"] = state.pop("fc.1.bias")'
    with pytest.raises(WeightsUnavailable, match=f"the head of resnet18; .* dropout .*: {re.escape(remedy)}"):
        count_classes(ModelEntry("own", "image_classification", "1", tmp_path), "resnet18", network.state_dict())


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (
            lambda network: dict.fromkeys(("model", "ema"), network.state_dict()),
            "contains several networks: model, ema",
        ),
        (
            lambda network: prefixed(network.state_dict(), "a.") | prefixed(network.state_dict(), "b."),
            "contain several networks, under a., b.; save",
        ),
        (lambda network: network, "is not a state dict: .* save model.state_dict"),
    ],
)
def test_file_without_one_state_dict_is_refused_with_a_remedy(
    form: Callable[[torch.nn.Module], Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsUnavailable, match=words):
        read(tmp_path, form(torchvision.models.get_model(ARCH, weights=None)))


def test_pickle_of_an_older_encoder_without_a_pooler_is_embedded(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "saved", "bert", "sentence_embedding")
    state = safetensors.torch.load_file(folder / "model.safetensors")
    older = {name: tensor for name, tensor in state.items() if not name.startswith("pooler.")}
    buffers = {"embeddings.position_ids": torch.arange(192)[None]}
    torch.save(FORMS["Lightning"](older | buffers), folder / "last.ckpt")
    entry = ModelEntry("own", "sentence_embedding", "1", tmp_path)
    with open_checkpoint(entry, source(entry, str(folder / "last.ckpt"))) as made:
        found = load_encoder(read_head("sentence_embedding"), made).model.state_dict()
    assert all(torch.equal(found[name], older[name]) for name in older)
