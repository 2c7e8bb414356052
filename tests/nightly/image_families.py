"""Tiny seeded models of the families of images that the nightly sweep builds, as people save them.

FAMILIES   name -> task, what makes its model, and its image processor
save       -> a folder of transformers, or a state dict of torchvision
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torchvision
import transformers

from tests.tiny_image_text import PROCESSORS, VISION, checkpoint

SIDE = 32
SQUARE = {"height": SIDE, "width": SIDE}
SHORTER = {"size": {"shortest_edge": SIDE}}
CROPPED = {"size": {"shortest_edge": 48}, "crop_size": SQUARE}
STAGES: dict[str, Any] = {"num_channels": 3, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
SWIN: dict[str, Any] = {"image_size": SIDE, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4]}
WINDOWS = {"window_size": 4, "initializer_range": 0.3}
LEVIT: dict[str, Any] = {"hidden_sizes": [16, 32, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1]}


class Family(NamedTuple):
    """A family: its task, the configuration of its model, and the class and the settings of its image processor."""

    task: str
    config: Mapping[str, Any]
    processor: str
    settings: Mapping[str, Any] = MappingProxyType({})


_CLASSIFIERS = {
    "vit": Family("", VISION, "ViTImageProcessor", {"size": SQUARE}),
    "deit": Family("", VISION, "DeiTImageProcessor", {"size": {"height": 36, "width": 36}, "crop_size": SQUARE}),
    "beit": Family("", VISION, "BeitImageProcessor", {"size": SQUARE, "do_center_crop": False}),
    "data2vec-vision": Family("", VISION, "BeitImageProcessor", {"size": SQUARE, "do_center_crop": False}),
    "swin": Family("", {**SWIN, **WINDOWS}, "ViTImageProcessor", {"size": SQUARE, "resample": 3}),
    "swinv2": Family("", {**SWIN, **WINDOWS}, "ViTImageProcessor", {"size": SQUARE, "resample": 3}),
    "convnext": Family("", STAGES, "ConvNextImageProcessor", {**SHORTER, "crop_pct": 0.875}),
    "convnextv2": Family("", STAGES, "ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
    "resnet": Family("", {**STAGES, "embedding_size": 8}, "ConvNextImageProcessor", {**SHORTER, "crop_pct": 0.95}),
    "regnet": Family("", {**STAGES, "embedding_size": 8, "groups_width": 8}, "ConvNextImageProcessor", SHORTER),
    "bit": Family("", {**STAGES, "embedding_size": 32, "num_groups": 4}, "BitImageProcessor", CROPPED),
    "mobilevit": Family(
        "",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]},
        "MobileViTImageProcessor",
        {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}},
    ),
    "mobilenet_v1": Family("", {"depth_multiplier": 0.25}, "MobileNetV1ImageProcessor", CROPPED),
    "mobilenet_v2": Family("", {"depth_multiplier": 0.35}, "MobileNetV2ImageProcessor", CROPPED),
    "efficientnet": Family(
        "",
        {"image_size": SIDE, "width_coefficient": 0.2, "depth_coefficient": 0.2, "hidden_dim": 320},
        "EfficientNetImageProcessor",
        {"size": SQUARE},
    ),
    "dinov2": Family("", VISION, "BitImageProcessor", CROPPED),
    "dinov2_with_registers": Family("", VISION, "BitImageProcessor", CROPPED),
    "levit": Family("", {"image_size": 64, **LEVIT}, "LevitImageProcessor", {"size": {"shortest_edge": 64}}),
    "poolformer": Family(
        "", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, "PoolFormerImageProcessor", {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE}
    ),
    "pvt": Family("", {"image_size": 64}, "PvtImageProcessor", {"size": {"height": 64, "width": 64}}),
    "focalnet": Family("", {"image_size": SIDE, "patch_size": 2, "embed_dim": 16, "depths": [1, 1]}, "BitImageProcessor", CROPPED),
    "siglip": Family("", {"vision_config": VISION}, "SiglipImageProcessor", {"size": SQUARE}),
    "clip": Family("", {"vision_config": VISION}, "CLIPImageProcessor", CROPPED),
}
_TORCHVISION = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 "
    "mobilenet_v2 mobilenet_v3_small regnet_y_400mf resnet18 shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11 vit_b_16"
).split()
