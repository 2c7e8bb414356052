"""Weights, read without running code in every form that training programs save, and preprocessing, which equals that of
the model's library: or the archive is rejected in one line.
"""

import argparse
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision
import transformers
from PIL import Image

from deploy.archives.encoders import read_head
from deploy.archives.hub import open_checkpoint
from deploy.archives.preprocessing import follow_processor, read_transform
from deploy.archives.sources import Source, WeightsUnavailable, source
from deploy.archives.state_dicts import read_state
from deploy.archives.weights import count_classes, read_shapes
from deploy.models import MODEL_LIST, ModelEntry
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.text.encoder_modules import load_encoder
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.pixel_network import PixelNetwork, load_state
from handlers.vision.preprocessing import Preprocessing
from tests.deploy.archives.conftest import ArchiveSh
from tests.photographs import path
from tests.stock_archives import Running
from tests.tables import table
from tests.tiny_models import checkpoint as tiny_checkpoint

# The cheapest of torchvision with batch norms, whose random statistics are made up.
SMALL = "shufflenet_v2_x0_5"
HEAD = {"fc.weight": torch.zeros(3, 1024), "fc.bias": torch.zeros(3)}
ARCH, OWN = "squeezenet1_1", ModelEntry("own", "image_classification", "1", Path("own"))
State = dict[str, torch.Tensor]
LOSS = {"criterion.weight": torch.ones(5)}


@table(
    ("image_classification", "weights.pt", "weights.pt is not a whole file of PyTorch or safetensors"),
    ("sentence_embedding", "pytorch_model.bin", "pytorch_model.bin is not a whole file of PyTorch or safetensors"),
    ("tensors", "m.pt", "m.pt: it is not a whole file of TorchScript"),
    ("tensors", "m.pt2", "m.pt2: it is not a whole program of torch.export.save"),
)
@pytest.mark.parametrize("is_plain", [True, False], ids=["pickle", "torch.save"])
def test_pickled_code_is_not_run(handler: str, file: str, words: str, is_plain: bool, archive_sh: ArchiveSh) -> None:
    config = {"arch": SMALL} if handler == "image_classification" else {}
    folder = archive_sh.write_list("own", handler, config=config)
    (folder / "config.json").write_text("{}")
    with (folder / file).open("wb") as weights:
        (pickle.dump if is_plain else torch.save)({"weight": Running(folder / "was-run")}, weights)
    assert words in archive_sh.rejected("own", "--weights", str(folder / file)) and not (folder / "was-run").exists()


@table(
    (SMALL, HEAD, None, "flowers: the weights have 3 classes; name them in "),
    (SMALL, HEAD, ["a", "b", "c"], f"the weights are not those of {SMALL}: they lack conv1.0.weight, conv1.1.bi"),
    (None, HEAD, None, "flowers: arch: required for weights of torchvision"),
    ("resnet19", HEAD, ["a", "b", "c"], "flowers: arch: resnet19 is not a classifier of torchvision.models"),
    (SMALL, {"epoch": 3}, None, "checkpoint.pt is not a state dict: it contains no mapping of names to tensors"),
)
def test_unfit_weights_are_one_line(
    arch: str | None, state: Any, labels: Any, words: str, archive_sh: ArchiveSh
) -> None:
    folder = archive_sh.write_list("flowers", "image_classification", config={"arch": arch})
    # As a training run leaves them: DistributedDataParallel's names, and the labels of TorchServe's own example.
    trained = {"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}
    torch.save(trained, folder / "checkpoint.pt")
    if labels is not None:
        named = {index: ["n0", label] for index, label in enumerate(labels)}
        (folder / "index_to_name.json").write_text(json.dumps(named))
    assert words in archive_sh.rejected("flowers", "--weights", str(folder / "checkpoint.pt"), "--engine", "torch")
    missing = archive_sh.rejected("flowers", "--weights", "my/missing.pt")
    assert missing.startswith("flowers: no file my/missing.pt; use --weights PATH")


@pytest.mark.builds
def test_random_weights_are_untrained_and_the_same(archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_sh.write_list("own", "image_classification", config={"arch": SMALL, "resize_size": 72, "crop_size": 64})
    states = []
    for cache in ("one", "two"):
        monkeypatch.setenv("CACHE_DIR", str(archive_sh.folder / cache))
        lines = archive_sh("own", "--weights", "random", "--engine", "torch", "--force")
        assert any("version 3-untrained" in line for line in lines)
        assert "UNTRAINED: random weights, so its answers mean nothing" in archive_sh.err
        states.append(torch.load(archive_sh.store / "own" / "model.pt", weights_only=True))
        # Exports lie where CACHE_DIR says, and an archive tells its version.
        assert list((archive_sh.folder / cache).rglob("model.pt"))
        manifest = json.loads((archive_sh.store / "own" / "MAR-INF" / "MANIFEST.json").read_text())
        assert manifest["model"]["modelVersion"] == "3-untrained"
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_published_weights_need_a_network(archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch) -> None:
    # An empty download cache, and a proxy where nothing listens.
    monkeypatch.setenv("TORCH_HOME", str(archive_sh.folder))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    line = archive_sh.rejected("resnet-152", "--models", str(MODEL_LIST))
    ways = "use --weights PATH, a state dict, or --weights random for an untrained demo"
    assert line.startswith("resnet-152: cannot fetch https://") and line.endswith(ways)


class Settings(dict[str, Any]):
    """As a training program's own class, which a server does not have."""


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


FORMS: dict[str, Callable[[State], Any]] = {
    "sorted": lambda state: dict(sorted(state.items())),
    "torch.compile in DistributedDataParallel": lambda state: prefixed(state, "module._orig_mod."),
    "FSDP": lambda state: {n.replace("squeeze.", "_fsdp_wrapped_module.squeeze."): t for n, t in state.items()},
    "tutorial": lambda state: {"model_state_dict": state, "optimizer": {"state": {0: {1: 1}}}, "best": np.float64(0.5)},
    "torchvision's reference": lambda state: {"model": state, "args": argparse.Namespace(lr=0.1, out=Path("/out"))},
    "Lightning": lambda state: {
        "state_dict": prefixed(state, "net.") | LOSS,
        "hyper_parameters": Settings(lr=0.1),
    },
    "AveragedModel alone": lambda state: {"ema": prefixed(state, "module.") | {"n_averaged": torch.tensor(3)}},
    "two networks of which one fits": lambda state: {"model": state, "judge": {"a.weight": torch.ones(2)}},
}


def read(folder: Path, saved: Any) -> State:
    torch.save(saved, folder / "weights.pth")
    return read_state(OWN, folder / "weights.pth", read_shapes(ARCH))


@pytest.mark.parametrize("form", FORMS)
def test_state_dict_of_any_form_is_loaded_as_it_was(form: str, tmp_path: Path) -> None:
    state = torchvision.models.get_model(ARCH, weights=None, num_classes=5).state_dict()
    found = read(tmp_path, FORMS[form](state))
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)
    assert count_classes(OWN, ARCH, found) == 5


def test_regnet_and_mnasnet_are_as_they_were_and_a_head_or_images_of_another_size_are_rejected(tmp_path: Path) -> None:
    own = torchvision.models.get_model("regnet_y_400mf", weights=None).state_dict()
    assert read_shapes("regnet_y_400mf") == {name: tensor.shape for name, tensor in own.items()}
    torch.manual_seed(0)
    network = torchvision.models.get_model("mnasnet0_5", weights=None, num_classes=5).eval()
    safetensors.torch.save_file(network.state_dict(), tmp_path / "weights.safetensors")
    state = read_state(OWN, tmp_path / "weights.safetensors", ())
    loaded = load_state(torchvision.models.get_model("mnasnet0_5", weights=None, num_classes=5), state, "mnasnet0_5")
    image = torch.rand(1, 3, 64, 64)
    assert torch.equal(loaded(image), network(image))
    network = torchvision.models.get_model("resnet18", num_classes=5)
    network.fc = torch.nn.Sequential(torch.nn.Dropout(), network.fc)
    remedy = 'state["fc.weight"] = state.pop("fc.1.weight"); state["fc.bias"] = state.pop("fc.1.bias")'
    with pytest.raises(WeightsUnavailable, match=f"the head of resnet18; .* dropout .*: {re.escape(remedy)}"):
        count_classes(OWN, "resnet18", network.state_dict())
    large, small = (torchvision.models.VisionTransformer(side, 16, 1, 1, 8, 8, num_classes=2) for side in (64, 32))
    with pytest.raises(InvalidConfig, match="set crop_size to the side of the images that it was trained on"):
        load_state(small, large.state_dict(), "vit_b_16")


@table(
    (lambda _, state: dict.fromkeys(("model", "ema"), state), "contains several networks: model, ema"),
    (lambda _, state: prefixed(state, "a.") | prefixed(state, "b."), "contain several networks, under a., b.; save"),
    (lambda network, _: network, "is not a state dict: .* save model.state_dict"),
)
def test_file_without_one_state_dict_is_rejected(form: Any, words: str, tmp_path: Path) -> None:
    network = torchvision.models.get_model(ARCH, weights=None)
    with pytest.raises(WeightsUnavailable, match=words):
        read(tmp_path, form(network, network.state_dict()))


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


TINY = ModelEntry("tiny", "image_classification", "1.0", Path())
FILE = Source("file", "weights.pt", "")
NAMES = ("chelsea", "rocket")
SQUARE = {"height": 32, "width": 32}
CROPPED = {"size": {"shortest_edge": 48}, "crop_size": SQUARE}
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "stretched": ("ViTImageProcessor", {"size": SQUARE}),
    "cropped by an odd number": ("BitImageProcessor", {"size": {"shortest_edge": 37}, "crop_size": SQUARE}),
    "no square": ("BitImageProcessor", {**CROPPED, "crop_size": {"height": 24, "width": 40}}),
    "stretched, then cropped": ("DeiTImageProcessor", {"size": {"height": 36, "width": 40}, "crop_size": SQUARE}),
    "a share that is cropped": ("ConvNextImageProcessor", {"size": {"shortest_edge": 32}, "crop_pct": 0.875}),
    "no crop of large ones": ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
    "LeViT": ("LevitImageProcessor", {"size": {"shortest_edge": 32}, "crop_size": SQUARE}),
    "blue first": ("MobileViTImageProcessor", CROPPED),
    "normalised twice": ("EfficientNetImageProcessor", {"size": SQUARE, "resample": 2}),
    "another factor": ("BitImageProcessor", {**CROPPED, "rescale_factor": 1 / 127.5}),
    "levels": ("BitImageProcessor", {**CROPPED, "do_rescale": False, "image_mean": [9, 8, 7], "image_std": [60] * 3}),
    "Lanczos": ("BitImageProcessor", {**CROPPED, "resample": 1}),
}


class Normalised(PixelNetwork):
    """Only what stands before a network."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__(preprocessing)
        self.none = torch.nn.Parameter(torch.zeros(1))


def images() -> list[Image.Image]:
    photographs = [Image.open(path(name)).convert("RGB") for name in NAMES]
    return [*photographs, photographs[0].crop((0, 0, 40, 390)), photographs[1].resize((5, 3))]


def assert_same(image: Image.Image, found: Preprocessing, wanted: torch.Tensor) -> None:
    """Equal but for the rounding of an image that is cut out of a long one: see LONG."""
    own = Normalised(found).normalise(torch.tensor(found.fit(image))[None]).detach()
    assert own.shape == wanted.shape
    is_long = max(image.size) > 8 * min(image.size)
    assert float((own - wanted).abs().mean()) <= (0.5 if is_long else 0.01) / min(found.std)


@pytest.mark.parametrize("arch", ["efficientnet_b0", "googlenet", "inception_v3", "resnet50", "swin_t", "vit_b_16"])
def test_defaults_of_an_arch_are_the_transform_of_its_published_weights(arch: str) -> None:
    found = read_transform(TINY, ImageClassificationConfig(arch=arch), FILE)
    transform = torchvision.models.get_model_weights(arch).IMAGENET1K_V1.transforms()
    again: Any = torch.nn.Identity()
    if arch in ("googlenet", "inception_v3"):  # as published weights have it, and people fine-tune them
        network: Any = torchvision.models.get_model(arch, weights=None, init_weights=False, transform_input=True)
        again = network._transform_input
    for image in images():
        assert_same(image, found, again(transform(image)[None]))


def test_settings_are_followed_and_printed_if_a_published_transform_differs(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"arch": "googlenet", "resize_size": 236, "interpolation": "bicubic", "transform_input": False}
    found = read_transform(TINY, parse(ImageClassificationConfig, config), FILE)
    assert (found.resize, found.crop, found.interpolation) == (236, (224, 224), "bicubic")
    np.testing.assert_allclose(found.mean, [255 * 0.485, 255 * 0.456, 255 * 0.406])
    usual = "the transform of GoogLeNet_Weights.IMAGENET1K_V1 has"
    differing = (("resize_size", 236, 256), ("interpolation", "bicubic", "bilinear"), ("transform_input", False, True))
    said = [f"tiny: {name} is {own}; {usual} {published}" for name, own, published in differing]
    assert capsys.readouterr().out.splitlines() == said
    # The origin of these weights is unknown: another published transform is named, too.
    read_transform(TINY, ImageClassificationConfig(arch="resnet50"), FILE)
    assert "resize_size is 256, as of ResNet50_Weights.IMAGENET1K_V1; IMAGENET1K_V2 has 232" in capsys.readouterr().out
    with pytest.raises(InvalidConfig, match="tiny: crop_size 300 is more than resize_size 256"):
        read_transform(TINY, ImageClassificationConfig(arch="resnet18", crop_size=300), FILE)


@pytest.mark.parametrize("kind", PROCESSORS)
def test_image_processor_is_followed(kind: str, tmp_path: Path) -> None:
    name, settings = PROCESSORS[kind]
    getattr(transformers, name)(**settings).save_pretrained(tmp_path)
    processor: Any = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    found = follow_processor(tmp_path)
    for image in images():
        wanted = torch.as_tensor(np.asarray(processor(image, return_tensors="pt")["pixel_values"]), dtype=torch.float32)
        assert_same(image, found, wanted)


@table(
    ("BitImageProcessor", {**CROPPED, "resample": 0}, "^resample: 0, size"),
    ("BitImageProcessor", {"do_resize": False, "crop_size": SQUARE}, "^do_resize: False"),
    ("BitImageProcessor", {"size": {"shortest_edge": 32}, "do_center_crop": False}, "images get different sizes"),
    ("DetrImageProcessor", {"size": {"shortest_edge": 80, "longest_edge": 133}}, "do_pad: True"),
)
def test_processor_is_rejected_by_its_setting(name: str, settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    getattr(transformers, name)(**settings).save_pretrained(tmp_path)
    with pytest.raises(InvalidConfig, match=words + r".*\Z"):
        follow_processor(tmp_path)


def test_image_processor_that_is_missing_or_unknown_is_one_line(tmp_path: Path) -> None:
    for name in ("other.json", "preprocessor_config.json"):
        (tmp_path / name).write_text('{"image_processor_type": "NoneOfThese"}')
        with pytest.raises(InvalidConfig, match="its image processor cannot be read"):
            follow_processor(tmp_path)
