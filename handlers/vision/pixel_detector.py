"""Detectors behind pixels as they were decoded: transformers', and torchvision's SSD and SSDLite.

checkpoint -> load_detector -> PixelDetector: (B, H, W, 3) uint8   -> (B, Q, labels) logits, (B, Q, 4) boxes
state dict -> load_ssd      -> PixelSsd:      (B, S, S, 3) float32 -> (B, A, classes) logits, (B, A, 4) boxes

Of transformers only the RT-DETR family: it stretches every image to one size, uses no mask, and predicts a set of
boxes, so an image's answer depends on no other image of its batch. handlers.vision.boxes chooses the boxes of an SSD.
Only code that runs PyTorch calls `load_detector` and `load_ssd`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from handlers.vision.boxes import RULES
from handlers.vision.pixel_network import PixelNetwork, load_checkpoint, load_state, read_state
from handlers.vision.preprocessing import Preprocessing, to_levels

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


WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # scales of centres and sizes in torchvision's BoxCoder
MOST_GROWTH = math.log(1000 / 16)  # the most that a size may grow, as a logarithm; BoxCoder's limit


class PixelSsd(PixelNetwork):
    """An SSD up to its boxes and their logits."""

    anchors: torch.Tensor
    scales: torch.Tensor

    def __init__(self, detector: Any, side: int) -> None:
        """Wrap an SSD of torchvision, whose anchors depend only on the size of its images."""
        mean, std = to_levels(detector.transform.image_mean), to_levels(detector.transform.image_std)
        self.preprocessing = Preprocessing((side, side), None, "bilinear", mean, std, is_antialiased=False)
        super().__init__(self.preprocessing)
        from torchvision.models.detection.image_list import ImageList  # noqa: PLC0415

        self.backbone, self.head = detector.backbone, detector.head
        blank = torch.zeros(1, 3, side, side)
        with torch.inference_mode():
            features = list(self.backbone(blank).values())
            (corners,) = detector.anchor_generator(ImageList(blank, [(side, side)]), features)
        sizes = corners[:, 2:] - corners[:, :2]
        # Anchors are centres and sizes, as shares of the image.
        self.register_buffer("scales", torch.tensor(WEIGHTS))
        self.register_buffer("anchors", torch.cat([corners[:, :2] + sizes / 2, sizes], 1).clone() / side)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn RGB, (B, S, S, 3) float32, into (B, A, classes) logits, the first for none, and (B, A, 4) boxes."""
        found = self.head(list(self.backbone(self.normalise(pixels)).values()))
        moves = found["bbox_regression"].float() / self.scales
        centres = self.anchors[:, :2] + moves[..., :2] * self.anchors[:, 2:]
        halves = self.anchors[:, 2:] * moves[..., 2:].clamp(max=MOST_GROWTH).exp() / 2
        return found["cls_logits"].float(), torch.cat([centres - halves, centres + halves], 2).clamp(0, 1)


def load_ssd(state: Mapping[str, torch.Tensor], arch: str) -> tuple[PixelSsd, int]:
    """Build a network of RULES, in fp32, and count its classes; InvalidConfig if the weights do not fit."""
    # The import takes seconds, and a worker on OpenVINO does not need it.
    import torchvision  # noqa: PLC0415

    empty = torchvision.models.get_model(arch, weights=None, weights_backbone=None)
    heads = [value for name, value in state.items() if name.startswith("head.classification_head.module_list.0.")]
    classes = len(heads[-1]) // empty.anchor_generator.num_anchors_per_location()[0] if heads else 1
    network = torchvision.models.get_model(arch, weights=None, weights_backbone=None, num_classes=classes)
    return PixelSsd(load_state(network, state, arch), RULES[arch].side).eval(), classes


def read_ssd(weights: Path, arch: str) -> PixelSsd:
    """Load a network from an archive's file; InvalidConfig if that is missing or another network's."""
    return load_ssd(read_state(weights), arch)[0]
