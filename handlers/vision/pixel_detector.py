"""A detector of transformers behind pixels as they were decoded.

checkpoint -> load_detector -> PixelDetector: (B, H, W, 3) uint8 -> (B, Q, labels) logits, (B, Q, 4) boxes

Detectors of the RT-DETR family alone: they stretch every image to one size, take no mask, and answer with a set, so
that nothing depends on the other images of a batch. Only what runs PyTorch calls `load_detector`.
"""

from pathlib import Path
from typing import Any

import torch

from handlers.vision.pixel_network import load_checkpoint, read_processor

FAMILY = ("rt_detr", "rt_detr_v2", "d_fine")
# What stretches to a size with a bilinear filter and makes 0..1 of 0..255, as the family's own configurations have it.
PROCESSOR = {"do_resize": True, "do_rescale": True, "do_normalize": False, "do_pad": False, "resample": 2}


def canvas(checkpoint: Path) -> tuple[int, int]:
    """Read the width and height that a checkpoint's images are stretched to.

    Raises:
        InvalidConfig: its preprocessor_config.json is missing, or does anything else with images.
    """
    return read_processor(checkpoint, PROCESSOR)[1]


class PixelDetector(torch.nn.Module):
    """A detector that takes pixels as they were decoded: a quarter of the bytes of floats."""

    def __init__(self, detector: Any) -> None:
        """Wrap a model of FAMILY."""
        super().__init__()
        self.detector = detector

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Detect.

        Args:
            pixels: (B, H, W, 3) uint8, RGB.

        Returns:
            Logits (B, Q, labels), and boxes (B, Q, 4): left, top, right and bottom, as shares of the image.
        """
        values = pixels.permute(0, 3, 1, 2).to(next(self.detector.parameters()).dtype) / 255
        found = self.detector(pixel_values=values)
        centres, halves = found.pred_boxes[..., :2], found.pred_boxes[..., 2:] / 2
        return found.logits, torch.cat([centres - halves, centres + halves], 2)


def load_detector(checkpoint: Path) -> PixelDetector:
    """Load a checkpoint, in fp32.

    Raises:
        InvalidConfig: it is of another family.
    """
    return PixelDetector(load_checkpoint(checkpoint, "AutoModelForObjectDetection", FAMILY)).eval()
