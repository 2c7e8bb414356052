"""A torchvision classifier behind pixels as they were decoded, as it is exported for OpenVINO and as PyTorch runs it.

state dict -> load_classifier -> PixelClassifier: (B, S, S, 3) uint8 -> (B, classes) logits

Only what runs PyTorch imports this module: torchvision's operators bring torch._dynamo with them, which takes seconds.
"""

from pathlib import Path

import torch
import torchvision

from handlers.engines.torch import dtype_for
from handlers.vision.config import ImageClassificationConfig


class PixelClassifier(torch.nn.Module):
    """A classifier that takes pixels as they were decoded: a quarter of the bytes of normalised floats."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self, classifier: torch.nn.Module, mean: tuple[float, float, float], std: tuple[float, float, float]
    ) -> None:
        """Wrap a classifier.

        Args:
            classifier: (B, 3, S, S) normalised, in the precision of its weights -> (B, classes).
            mean, std: per channel, of values in 0..1.
        """
        super().__init__()
        self.classifier = classifier
        self.dtype = next(classifier.parameters()).dtype
        # Values in 0..255 are normalised without dividing them first. Always fp32: bf16 has 8 bits of mantissa.
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).mul(255).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).mul(255).view(1, 3, 1, 1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify.

        Args:
            pixels: (B, S, S, 3) uint8, RGB.

        Returns:
            (B, classes) logits.
        """
        # The permuted view of interleaved pixels is what PyTorch calls channels_last.
        channels_first = pixels.permute(0, 3, 1, 2).float()
        logits: torch.Tensor = self.classifier(((channels_first - self.mean) / self.std).to(self.dtype))
        return logits


def load_classifier(
    weights: Path, config: ImageClassificationConfig, classes: int, device: torch.device
) -> PixelClassifier:
    """Build `config.arch` on its device, in `config.precision`, from a state dict of the classifier alone."""
    classifier = torchvision.models.get_model(config.arch, weights=None, num_classes=classes)
    classifier.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True, mmap=True))
    classifier = classifier.to(dtype_for(device, config.precision), memory_format=torch.channels_last)
    return PixelClassifier(classifier, config.mean, config.std).to(device)
