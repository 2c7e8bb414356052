"""A detector of transformers behind pixels as they were decoded.

checkpoint -> load_detector -> PixelDetector: (B, H, W, 3) uint8 -> (B, Q, labels) logits, (B, Q, 4) boxes

Only detectors of the RT-DETR family: they stretch every image to one size, use no mask, and predict a set of boxes, so
an image's answer depends on no other image of its batch. Only code that runs PyTorch calls `load_detector`.
"""

from pathlib import Path
from typing import Any

import torch

from handlers.vision.pixel_network import PixelNetwork, load_checkpoint
from handlers.vision.preprocessing import Preprocessing

FAMILY = ("rt_detr", "rt_detr_v2", "d_fine")


class PixelDetector(PixelNetwork):
    def __init__(self, detector: Any, preprocessing: Preprocessing) -> None:
        super().__init__(preprocessing)
        self.detector = detector

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn RGB, (B, H, W, 3) uint8, into (B, Q, labels) logits and (B, Q, 4) boxes, as shares of the image."""
        found = self.detector(pixel_values=self.normalise(pixels))
        centres, halves = found.pred_boxes[..., :2], found.pred_boxes[..., 2:] / 2
        return found.logits, torch.cat([centres - halves, centres + halves], 2)


def load_detector(checkpoint: Path, preprocessing: Preprocessing) -> PixelDetector:
    """Load a checkpoint, in fp32; InvalidConfig if it is of another family."""
    detector = load_checkpoint(checkpoint, "AutoModelForObjectDetection", FAMILY)
    return PixelDetector(detector, preprocessing).eval()
