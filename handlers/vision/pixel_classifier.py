"""A classifier behind pixels as they were decoded.

state dict -> build_torchvision, checkpoint -> load_classifier -> PixelClassifier: (B, H, W, 3) uint8 -> (B, classes)

Only code that runs PyTorch imports this module: torchvision's operators import torch._dynamo, which takes seconds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision

from handlers.checkpoints import load_strictly
from handlers.vision.pixel_network import PixelNetwork, load_state
from handlers.vision.preprocessing import Preprocessing

# Networks of torchvision with heads for training, and the arguments that leave these out. Random weights are replaced
# anyway, and Inception needs half a minute for them.
WITHOUT_HEADS = {name: {"aux_logits": False, "init_weights": False} for name in ("googlenet", "inception_v3")}
# Networks for one size of images, by the first part of their names -> the parameter of that size.
SIZED = {"vit": "image_size", "maxvit": "input_size"}


class PixelClassifier(PixelNetwork):
    def __init__(self, classifier: Any, preprocessing: Preprocessing) -> None:
        """Wrap a classifier: (B, 3, H, W) normalised, in the precision of its weights -> (B, classes)."""
        super().__init__(preprocessing)
        self.classifier = classifier

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Turn pixels, (B, H, W, 3) uint8, RGB, into logits (B, classes)."""
        found = self.classifier(self.normalise(pixels))
        # transformers' models return a mapping.
        logits: torch.Tensor = found if isinstance(found, torch.Tensor) else found["logits"]
        return logits


def network_options(arch: str, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return further arguments of `torchvision.models.get_model` for a network."""
    width, height = preprocessing.size or (0, 0)
    sizes = {"image_size": width, "input_size": (height, width)}
    parameter = SIZED.get(arch.partition("_")[0])
    return {**WITHOUT_HEADS.get(arch, {}), **({parameter: sizes[parameter]} if parameter else {})}


def build_torchvision(
    state: Mapping[str, torch.Tensor], arch: str, classes: int, preprocessing: Preprocessing
) -> PixelClassifier:
    """Build a network of torchvision from its state dict, in fp32; InvalidConfig if that is another network's."""
    known = network_options(arch, preprocessing)
    empty = torchvision.models.get_model(arch, weights=None, num_classes=classes, **known)
    return PixelClassifier(load_state(empty, state, arch), preprocessing).eval()


def load_classifier(checkpoint: Path, preprocessing: Preprocessing) -> PixelClassifier:
    """Load a checkpoint of transformers, in fp32; InvalidConfig if it has no head."""
    classifier = load_strictly("AutoModelForImageClassification", checkpoint, dtype=torch.float32)
    if classifier.config.model_type == "efficientnet" and classifier.config.pooling_type == "mean":
        # transformers' pooling window is larger than the map, which OpenVINO rejects; it averages the whole map.
        classifier.efficientnet.pooler = torch.nn.AdaptiveAvgPool2d(1)
    return PixelClassifier(classifier, preprocessing).eval()
