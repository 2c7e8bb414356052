"""The preprocessing equals that of the model's library, or the archive is refused by the setting's name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import transformers
from PIL import Image

from deploy.archives.preprocessing import follow_processor, read_transform
from deploy.archives.sources import Source
from deploy.models import ModelEntry
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.pixel_network import PixelNetwork
from handlers.vision.preprocessing import Preprocessing
from tests.photographs import path
from tests.tables import table

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
def test_processor_is_refused_by_its_setting(name: str, settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    getattr(transformers, name)(**settings).save_pretrained(tmp_path)
    with pytest.raises(InvalidConfig, match=words + r".*\Z"):
        follow_processor(tmp_path)


def test_image_processor_that_is_missing_or_unknown_is_one_line(tmp_path: Path) -> None:
    for name in ("other.json", "preprocessor_config.json"):
        (tmp_path / name).write_text('{"image_processor_type": "NoneOfThese"}')
        with pytest.raises(InvalidConfig, match="its image processor cannot be read"):
            follow_processor(tmp_path)
