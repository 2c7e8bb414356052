"""A segmenter behind pixels as they were decoded.

weights -> load_segmenter -> PixelSegmenter: (B, H, W, 3) uint8 -> (B, H, W) uint8 classes, (B, H, W) probabilities
                             PixelSegformer: (B, H, W, 3) uint8 -> (B, classes, h, w) logits

Only what runs PyTorch calls `load_segmenter`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from handlers.errors import InvalidConfig
from handlers.vision.pixel_network import PixelNetwork, load_checkpoint, load_state, read_state
from handlers.vision.preprocessing import Preprocessing

# Of transformers: networks that see the whole image in one square, and answer a class for each of its pixels.
FAMILY = ("segformer",)
# A map has a byte for each pixel.
MOST_CLASSES = 256


class PixelSegmenter(PixelNetwork):
    """A segmenter of torchvision behind pixels, which answers 5 bytes for each in place of 4 for each class."""

    output_names = ("classes", "probabilities")

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        """Wrap a network, (B, 3, H, W) normalised -> a mapping with `out`: (B, classes, H, W) logits."""
        super().__init__(preprocessing)
        self.network = network

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Segment.

        Args:
            pixels: (B, H, W, 3) uint8, RGB.

        Returns:
            The likeliest class of each pixel, (B, H, W) uint8, and its probability, (B, H, W) float32.
        """
        logits = self.network(self.normalised(pixels))["out"].float()
        # Softmax and then max are three passes over all classes of all pixels in OpenVINO, and take 1.4 times as long.
        best, classes = logits.topk(1, dim=1)
        return classes[:, 0].to(torch.uint8), 1 / (logits - best).exp().sum(1)


class PixelSegformer(PixelNetwork):
    """A segmenter of transformers behind pixels: its logits are enlarged to the image's size, which a graph has not."""

    output_names = ("map_logits",)

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        """Wrap a network of FAMILY."""
        super().__init__(preprocessing)
        self.network = network

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Turn pixels, (B, H, W, 3) uint8, RGB, into logits (B, classes, h, w), a quarter of the width and height."""
        logits: torch.Tensor = self.network(pixel_values=self.normalised(pixels)).logits.float()
        return logits


def load_segmenter(
    weights: Path, arch: str | None, classes: int, preprocessing: Preprocessing
) -> PixelSegmenter | PixelSegformer:
    """Load a network, in fp32.

    Args:
        weights: a checkpoint's folder; a file with a state dict where `arch` is given.
        arch: of torchvision.
        classes: how many there are, for `arch`.
        preprocessing: what it sees of an image.

    Raises:
        InvalidConfig: the weights are missing, those of another network, or of a family that is not served.
    """
    if arch is not None:
        return of_torchvision(read_state(weights), arch, classes, preprocessing)
    loaded = load_checkpoint(weights, "AutoModelForSemanticSegmentation", FAMILY)
    _check_classes(loaded.config.num_labels)
    return PixelSegformer(loaded, preprocessing).eval()


def _check_classes(classes: int) -> None:
    if classes > MOST_CLASSES:
        raise InvalidConfig(f"the model has {classes} classes; {MOST_CLASSES} are the most")


def of_torchvision(state: Mapping[str, Any], arch: str, classes: int, preprocessing: Preprocessing) -> PixelSegmenter:
    """Build a network of torchvision from its state dict.

    Raises:
        InvalidConfig: there is no such network, or the state dict is another one's.
    """
    import torchvision  # noqa: PLC0415

    if arch not in torchvision.models.list_models(torchvision.models.segmentation):
        raise InvalidConfig(f"arch: {arch} is no network of torchvision.models.segmentation")
    _check_classes(classes)
    network = torchvision.models.get_model(arch, weights=None, weights_backbone=None, num_classes=classes)
    return PixelSegmenter(load_state(network, state, arch), preprocessing).eval()
