"""A torchvision classifier behind pixels as they were decoded.

state dict -> load_classifier -> PixelClassifier: (B, S, S, 3) uint8 -> (B, classes) logits

Only what runs PyTorch imports this module: torchvision's operators bring torch._dynamo with them, which takes seconds.
"""

from pathlib import Path

import torch
import torchvision

from handlers.engines.torch import dtype_for
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.pixel_network import PixelNetwork, load_state, read_state


class PixelClassifier(PixelNetwork):
    """A classifier behind pixels."""

    def __init__(
        self, classifier: torch.nn.Module, mean: tuple[float, float, float], std: tuple[float, float, float]
    ) -> None:
        """Wrap a classifier: (B, 3, S, S) normalised, in the precision of its weights -> (B, classes)."""
        super().__init__(mean, std)
        self.classifier = classifier

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Turn pixels, (B, S, S, 3) uint8, RGB, into logits (B, classes)."""
        logits: torch.Tensor = self.classifier(self.normalised(pixels))
        return logits


def load_classifier(
    weights: Path, config: ImageClassificationConfig, classes: int, device: torch.device
) -> PixelClassifier:
    """Build `config.arch` on its device, in `config.precision`, from a state dict of the classifier alone."""
    empty = torchvision.models.get_model(config.arch, weights=None, num_classes=classes)
    classifier = load_state(empty, read_state(weights), config.arch)
    classifier.to(dtype_for(device, config.precision), memory_format=torch.channels_last)
    return PixelClassifier(classifier, config.mean, config.std).to(device)
