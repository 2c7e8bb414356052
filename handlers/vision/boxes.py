"""The choice of boxes of torchvision's SSD and SSDLite, outside the graph and without PyTorch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class SsdRules(NamedTuple):
    """torchvision's own settings of a network."""

    side: int  # of the square that images are stretched to
    overlap: float  # most intersection over union of two boxes of a class
    candidates: int  # most boxes of a class before overlaps are compared
    most: int  # boxes of an image


RULES = {"ssdlite320_mobilenet_v3_large": SsdRules(320, 0.55, 300, 300), "ssd300_vgg16": SsdRules(300, 0.45, 400, 200)}


def select_boxes(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], least: float, rules: SsdRules
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Select indices and classes of (A, 4) boxes in 0..1 with (A, classes) scores, best first, as SSD does."""
    best = np.argsort(-scores, axis=0, kind="stable")[: rules.candidates]
    anchors, classes = best.T.ravel(), np.repeat(np.arange(scores.shape[1]), len(best))
    is_likely = scores[anchors, classes] > least
    anchors, classes = anchors[is_likely], classes[is_likely]
    # Classes are moved so far apart that boxes of two classes never overlap.
    corners = boxes[anchors] + 2 * classes[:, None]
    areas = (boxes[anchors, 2] - boxes[anchors, 0]) * (boxes[anchors, 3] - boxes[anchors, 1])
    left = np.argsort(-scores[anchors, classes], kind="stable")
    kept: list[int] = []
    while len(left) and len(kept) < rules.most:
        first, rest = left[0], left[1:]
        kept.append(first)
        inner = np.minimum(corners[first, 2:], corners[rest, 2:]) - np.maximum(corners[first, :2], corners[rest, :2])
        shared = inner.clip(0).prod(axis=1)
        left = rest[shared <= rules.overlap * (areas[first] + areas[rest] - shared)]
    return anchors[kept], classes[kept]
