"""A segmenter behind pixels as they were decoded, as it is exported for OpenVINO and as PyTorch runs it.

weights -> load_segmenter -> PixelSegmenter: (B, H, W, 3) uint8 -> (B, H, W) uint8 classes, (B, H, W) probabilities
an image's size -> Geometry -> the size that the network sees

Only what runs PyTorch calls `load_segmenter`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from handlers.errors import ImageTooLarge, InvalidConfig
from handlers.vision.config import ImageSegmentationConfig

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
        path = checkpoint / "preprocessor_config.json"
        if not path.is_file():
            raise InvalidConfig(f"{path.name}: missing; it says what size the model's images have")
        said = json.loads(path.read_text(encoding="utf-8"))
        size, statistics = said.get("size"), [tuple(said.get(name) or ()) for name in ("image_mean", "image_std")]
        wrong = [name for name, value in PROCESSOR.items() if said.get(name, value) != value]
        wrong += ["image_mean or image_std"] * any(len(each) != 3 for each in statistics)
        if wrong or not isinstance(size, dict) or not {"height", "width"} <= size.keys():
            raise InvalidConfig(
                f"{path.name}: {', '.join(wrong) or 'size'}: only images stretched to one size are served"
            )
        width, height = int(size["width"]), int(size["height"])
        return cls((width, height), min(width, height), width * height, *statistics)

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


class PixelSegmenter(torch.nn.Module):
    """A segmenter that takes pixels as they were decoded, and answers 5 bytes for each in place of 4 for each class."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, network: Any, output: str, geometry: Geometry) -> None:
        """Wrap a network, (B, 3, H, W) normalised -> a mapping with `output`: (B, classes, h, w) logits."""
        super().__init__()
        self.network, self.output = network, output
        # Values in 0..255 are normalised without dividing them first. Always fp32: bf16 has 8 bits of mantissa.
        self.register_buffer("mean", torch.tensor(geometry.mean, dtype=torch.float32).mul(255).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(geometry.std, dtype=torch.float32).mul(255).view(1, 3, 1, 1))

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Segment.

        Args:
            pixels: (B, H, W, 3) uint8, RGB.

        Returns:
            The likeliest class of each pixel, (B, H, W) uint8, and its probability, (B, H, W) float32.
        """
        values = (pixels.permute(0, 3, 1, 2).float() - self.mean) / self.std
        logits = self.network(values.to(next(self.network.parameters()).dtype))[self.output].float()
        # As transformers does before it takes the likeliest; torchvision's networks do it themselves.
        logits = torch.nn.functional.interpolate(logits, size=values.shape[2:], mode="bilinear", align_corners=False)
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
        if not weights.is_file():
            raise InvalidConfig(f"engine: torch needs {weights.name}, which this archive lacks")
        return of_torchvision(torch.load(weights, map_location="cpu", weights_only=True), arch, classes, geometry)
    # Seconds, which a worker on OpenVINO does not need.
    import transformers  # noqa: PLC0415

    config = transformers.AutoConfig.from_pretrained(weights, local_files_only=True)
    if config.model_type not in FAMILY:
        raise InvalidConfig(f"{config.model_type} is no segmenter that is served: {', '.join(FAMILY)}")
    if config.num_labels > MOST_CLASSES:
        raise InvalidConfig(f"the model has {config.num_labels} classes; {MOST_CLASSES} are the most")
    loaded = transformers.AutoModelForSemanticSegmentation.from_pretrained(
        weights, local_files_only=True, use_safetensors=True, dtype=torch.float32
    )
    return PixelSegmenter(loaded.eval(), "logits", geometry).eval()


def of_torchvision(state: Mapping[str, Any], arch: str, classes: int, geometry: Geometry) -> PixelSegmenter:
    """Build a network of torchvision from its state dict.

    Raises:
        InvalidConfig: there is no such network, or the state dict is another one's.
    """
    import torchvision  # noqa: PLC0415

    if arch not in torchvision.models.list_models(torchvision.models.segmentation):
        raise InvalidConfig(f"arch: {arch} is no network of torchvision.models.segmentation")
    if classes > MOST_CLASSES:
        raise InvalidConfig(f"the model has {classes} classes; {MOST_CLASSES} are the most")
    network = torchvision.models.get_model(arch, weights=None, weights_backbone=None, num_classes=classes)
    # The second head is for training.
    kept = {name: value for name, value in state.items() if not name.startswith("aux_classifier.")}
    try:
        network.load_state_dict(kept)
    except RuntimeError as error:
        raise InvalidConfig(f"the weights are not those of {arch}: {str(error).splitlines()[1].strip()}") from error
    return PixelSegmenter(network.eval(), "out", geometry).eval()
