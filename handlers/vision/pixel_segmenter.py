"""A segmenter behind pixels as they were decoded.

weights -> load_segmenter -> PixelSegmenter: (B, H, W, 3) uint8 -> (B, H, W) uint8 classes, (B, H, W) probabilities
an image's size -> Geometry -> the size that the network sees

Only what runs PyTorch calls `load_segmenter`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from handlers.errors import ImageTooLarge, InvalidConfig
from handlers.vision.config import ImageSegmentationConfig
from handlers.vision.pixel_network import PixelNetwork, load_checkpoint, load_state, read_processor, read_state

# Of transformers: networks that see the whole image in one square, and answer a class for each of its pixels.
FAMILY = ("segformer",)
# What stretches to a size with a bilinear filter and normalises, as the family's own configurations have it.
PROCESSOR = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_pad": False, "resample": 2}
# A map has a byte for each pixel.
MOST_CLASSES = 256


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a network sees of an image.

    Attributes:
        size: the width and height that images are stretched to; None where they keep their shape.
        shorter: the length of the shorter side, where they do.
        most_pixels: the most pixels that it sees.
        mean, std: per channel, of values in 0..1.
    """

    size: tuple[int, int] | None
    shorter: int
    most_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def of(cls, config: ImageSegmentationConfig, checkpoint: Path) -> "Geometry":
        """Read it from the settings, or from a checkpoint's preprocessor_config.json.

        Raises:
            InvalidConfig: the file is missing, or does anything else with images.
        """
        if config.arch is not None:
            return cls(None, config.resize_size, config.max_seen_pixels, config.mean, config.std)
        processor, size = read_processor(checkpoint, PROCESSOR, ("image_mean", "image_std"))
        mean: Any = tuple(processor["image_mean"])
        std: Any = tuple(processor["image_std"])
        return cls(size, min(size), size[0] * size[1], mean, std)

    def seen(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that an image is resized to.

        Raises:
            ImageTooLarge: its shape makes too many pixels of it.
        """
        if self.size is not None:
            return self.size
        # torchvision cuts the longer side off to whole pixels.
        scale = self.shorter / min(width, height)
        found = max(self.shorter, int(width * scale)), max(self.shorter, int(height * scale))
        if found[0] * found[1] > self.most_pixels:
            raise ImageTooLarge(
                f"An image of {width} x {height} is resized to {found[0]} x {found[1]}; max_seen_pixels is "
                f"{self.most_pixels}."
            )
        return found


class PixelSegmenter(PixelNetwork):
    """A segmenter behind pixels, which answers 5 bytes for each in place of 4 for each class."""

    def __init__(self, network: Any, output: str, geometry: Geometry) -> None:
        """Wrap a network, (B, 3, H, W) normalised -> a mapping with `output`: (B, classes, h, w) logits."""
        super().__init__(geometry.mean, geometry.std)
        self.network, self.output = network, output

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Segment.

        Args:
            pixels: (B, H, W, 3) uint8, RGB.

        Returns:
            The likeliest class of each pixel, (B, H, W) uint8, and its probability, (B, H, W) float32.
        """
        logits = self.network(self.normalised(pixels))[self.output].float()
        # As transformers does before it takes the likeliest; torchvision's networks do it themselves.
        logits = torch.nn.functional.interpolate(logits, size=pixels.shape[1:3], mode="bilinear", align_corners=False)
        # Softmax and then max are three passes over all classes of all pixels in OpenVINO, and take 1.4 times as long.
        best, classes = logits.topk(1, dim=1)
        return classes[:, 0].to(torch.uint8), 1 / (logits - best).exp().sum(1)


def load_segmenter(weights: Path, arch: str | None, classes: int, geometry: Geometry) -> PixelSegmenter:
    """Load a network, in fp32.

    Args:
        weights: a checkpoint's folder; a file with a state dict where `arch` is given.
        arch: of torchvision.
        classes: how many there are, for `arch`.
        geometry: what it sees of an image.

    Raises:
        InvalidConfig: the weights are missing, those of another network, or of a family that is not served.
    """
    if arch is not None:
        return of_torchvision(read_state(weights), arch, classes, geometry)
    loaded = load_checkpoint(weights, "AutoModelForSemanticSegmentation", FAMILY)
    _check_classes(loaded.config.num_labels)
    return PixelSegmenter(loaded, "logits", geometry).eval()


def _check_classes(classes: int) -> None:
    if classes > MOST_CLASSES:
        raise InvalidConfig(f"the model has {classes} classes; {MOST_CLASSES} are the most")


def of_torchvision(state: Mapping[str, Any], arch: str, classes: int, geometry: Geometry) -> PixelSegmenter:
    """Build a network of torchvision from its state dict.

    Raises:
        InvalidConfig: there is no such network, or the state dict is another one's.
    """
    import torchvision  # noqa: PLC0415

    if arch not in torchvision.models.list_models(torchvision.models.segmentation):
        raise InvalidConfig(f"arch: {arch} is no network of torchvision.models.segmentation")
    _check_classes(classes)
    network = torchvision.models.get_model(arch, weights=None, weights_backbone=None, num_classes=classes)
    return PixelSegmenter(load_state(network, state, arch), "out", geometry).eval()
