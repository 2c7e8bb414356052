"""Tiny seeded models of the families of images that the nightly sweep builds, as people save them.

TRANSFORMERS, TORCHVISION   families of classifiers
save                        -> a folder of transformers, or a state dict of torchvision
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torchvision
import transformers

from tests.tiny_image_text import VISION

SIDE = 32
SQUARE, LARGE = ({"height": side, "width": side} for side in (SIDE, 64))
SHORTER = {"size": {"shortest_edge": SIDE}}
CROPPED = {"size": {"shortest_edge": 48}, "crop_size": SQUARE}
STAGES: dict[str, Any] = {"num_channels": 3, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
SWIN: dict[str, Any] = {"image_size": SIDE, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4]}
WINDOWS = {"window_size": 4, "initializer_range": 0.3}
LEVIT: dict[str, Any] = {"image_size": 64, "hidden_sizes": [16, 32, 32], "num_attention_heads": [2, 2, 2]}
LEVIT["depths"] = [1, 1, 1]
EFFICIENT: dict[str, Any] = {"image_size": SIDE, "width_coefficient": 0.2, "depth_coefficient": 0.2}
EFFICIENT |= {"hidden_dim": 256, "initializer_range": 0.3}


class Family(NamedTuple):
    """A family: the configuration of its model, and the class and the settings of its image processor."""

    config: Mapping[str, Any]
    processor: str
    settings: Mapping[str, Any] = MappingProxyType({})


TRANSFORMERS = {
    "vit": Family(VISION, "ViTImageProcessor", {"size": SQUARE}),
    "deit": Family(VISION, "DeiTImageProcessor", {"size": {"height": 36, "width": 36}, "crop_size": SQUARE}),
    "beit": Family(VISION, "BeitImageProcessor", {"size": SQUARE, "do_center_crop": False}),
    "data2vec-vision": Family(VISION, "BeitImageProcessor", {"size": SQUARE, "do_center_crop": False}),
    "swin": Family({**SWIN, **WINDOWS}, "ViTImageProcessor", {"size": SQUARE, "resample": 3}),
    "swinv2": Family({**SWIN, **WINDOWS}, "ViTImageProcessor", {"size": SQUARE, "resample": 3}),
    "convnext": Family(STAGES, "ConvNextImageProcessor", {**SHORTER, "crop_pct": 0.875}),
    "convnextv2": Family(STAGES, "ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
    "resnet": Family({**STAGES, "embedding_size": 8}, "ConvNextImageProcessor", {**SHORTER, "crop_pct": 0.95}),
    "regnet": Family({**STAGES, "embedding_size": 8, "groups_width": 8}, "ConvNextImageProcessor", SHORTER),
    "bit": Family({**STAGES, "embedding_size": 32, "num_groups": 4}, "BitImageProcessor", CROPPED),
    "mobilevit": Family(
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]},
        *("MobileViTImageProcessor", {"size": {"shortest_edge": 72}, "crop_size": LARGE}),
    ),
    "mobilenet_v1": Family({"depth_multiplier": 0.25}, "MobileNetV1ImageProcessor", CROPPED),
    "mobilenet_v2": Family({"depth_multiplier": 0.35}, "MobileNetV2ImageProcessor", CROPPED),
    "efficientnet": Family(EFFICIENT, "EfficientNetImageProcessor", {"size": SQUARE}),
    "dinov2": Family(VISION, "BitImageProcessor", CROPPED),
    "dinov2_with_registers": Family(VISION, "BitImageProcessor", CROPPED),
    "levit": Family(LEVIT, "LevitImageProcessor", {"size": {"shortest_edge": 64}, "crop_size": LARGE}),
    "poolformer": Family(
        {"hidden_sizes": STAGES["hidden_sizes"], "depths": STAGES["depths"]},
        *("PoolFormerImageProcessor", {**SHORTER, "crop_size": SQUARE}),
    ),
    "focalnet": Family({name: SWIN[name] for name in SWIN if name != "num_heads"}, "BitImageProcessor", CROPPED),
    "siglip": Family({"vision_config": VISION}, "SiglipImageProcessor", {"size": SQUARE}),
    "clip": Family({"vision_config": VISION}, "CLIPImageProcessor", CROPPED),
}
TORCHVISION = ("efficientnet_b0", "googlenet", "inception_v3", "maxvit_t", "resnet18", "swin_t", "vit_b_16")
NAMES = (*TRANSFORMERS, *TORCHVISION)
# The heads that transformers has two of.
HEADS = {"deit": "DeiTForImageClassification", "levit": "LevitForImageClassificationWithTeacher"}


def settings(name: str) -> dict[str, str]:
    return {"arch": name} if name in TORCHVISION else {}


def save(name: str, folder: Path) -> Path:
    """Write a model of NAMES with seeded weights, and return what `--weights` names."""
    torch.manual_seed(0)
    if name in TRANSFORMERS:
        family = TRANSFORMERS[name]
        config = transformers.AutoConfig.for_model(name, num_labels=3, **family.config)
        class_name = HEADS.get(name)
        auto = transformers.AutoModelForImageClassification
        model = auto.from_config(config) if class_name is None else getattr(transformers, class_name)(config)
        _enliven(model, family.config.get("image_size", 64))
        model.save_pretrained(folder)
        getattr(transformers, family.processor)(**family.settings).save_pretrained(folder)
        return folder
    known = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    network = torchvision.models.get_model(name, weights=None, num_classes=3, **known)
    _enliven(network, 299 if name == "inception_v3" else 224)
    torch.save(network.state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def _enliven(network: torch.nn.Module, side: int) -> None:
    """Give batch norms the statistics of noise, and heads of zeros weights: fresh networks answer all images alike."""
    for weight in network.parameters():
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.3)
    norms = [each for each in network.modules() if isinstance(each, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # a cumulative average
    if norms:
        with torch.no_grad():
            network.train()(torch.randn(8, 3, side, side))
    network.eval()
