"""A segmenter behind pixels as they were decoded.

weights -> load_segmenter -> PixelSegmenter: (B, H, W, 3) uint8 -> (B, H, W) uint8 classes, (B, H, W) probabilities
                             PixelSegformer: (B, H, W, 3) uint8 -> (B, classes, h, w) logits

Only code that runs PyTorch calls `load_segmenter`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from handlers.errors import InvalidConfig
from handlers.vision.pixel_network import PixelNetwork, load_checkpoint, load_state, read_state
from handlers.vision.preprocessing import Preprocessing

# Families of transformers that see images of one size, and return few logits for their pixels.
FAMILY = ("segformer", "beit", "data2vec-vision", "mobilenet_v2", "mobilevit", "mobilevitv2")
MOST_CLASSES = 256  # a map has a byte for each pixel


class PixelSegmenter(PixelNetwork):
    """A segmenter of torchvision; 5 bytes for each pixel leave the graph, not 4 for each class of it."""

    output_names = ("classes", "probabilities")

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        """Wrap a network, (B, 3, H, W) normalised -> a mapping with `out`: (B, classes, H, W) logits."""
        super().__init__(preprocessing)
        self.network = network

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn RGB, (B, H, W, 3) uint8, into the likeliest class and its probability, (B, H, W) each."""
        logits = self.network(self.normalise(pixels))["out"].float()
        # In OpenVINO softmax and then max are three passes over all classes of all pixels, and take 1.4 times as long.
        best, classes = logits.topk(1, dim=1)
        return classes[:, 0].to(torch.uint8), 1 / (logits - best).exp().sum(1)


class PixelSegformer(PixelNetwork):
    """A segmenter of transformers; its logits are enlarged to the image's size, which a graph does not know."""

    output_names = ("map_logits",)

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        super().__init__(preprocessing)
        self.network = network

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Turn pixels, (B, H, W, 3) uint8, RGB, into logits (B, classes, h, w), of fewer pixels."""
        logits: torch.Tensor = self.network(pixel_values=self.normalise(pixels)).logits.float()
        return logits


def load_segmenter(
    weights: Path, arch: str | None, classes: int, preprocessing: Preprocessing
) -> PixelSegmenter | PixelSegformer:
    if arch is not None:
        return build_torchvision(read_state(weights), arch, classes, preprocessing)
    loaded = load_checkpoint(weights, "AutoModelForSemanticSegmentation", FAMILY)
    _check_classes(loaded.config.num_labels)
    return PixelSegformer(loaded, preprocessing).eval()


def _check_classes(classes: int) -> None:
    if classes > MOST_CLASSES:
        raise InvalidConfig(f"the model has {classes} classes; a map has at most {MOST_CLASSES}")


def build_torchvision(
    state: Mapping[str, torch.Tensor], arch: str, classes: int, preprocessing: Preprocessing
) -> PixelSegmenter:
    """Build a network of torchvision from its state dict; InvalidConfig if either does not fit."""
    import torchvision  # noqa: PLC0415

    if arch not in torchvision.models.list_models(torchvision.models.segmentation):
        raise InvalidConfig(f"arch: {arch} is not a network of torchvision.models.segmentation")
    _check_classes(classes)
    network = torchvision.models.get_model(arch, weights=None, weights_backbone=None, num_classes=classes)
    return PixelSegmenter(load_state(network, state, arch), preprocessing).eval()
