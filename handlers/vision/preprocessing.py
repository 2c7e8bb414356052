"""The resizing and normalisation of a model's images, as the model's own library defines them.

the builder -> preprocessing.json -> Preprocessing -> fit: an image in RGB -> (H, W, 3) uint8, or float32
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from handlers.aliases import Array

PREPROCESSING = "preprocessing.json"
# If an image is longer than this many times its width, only the part inside the crop is computed: the whole may have
# any number of pixels. Pillow then rounds some pixels differently, by one level of 256 on average.
LONG = 8

Levels = tuple[float, float, float]
# uint8, or float32 for a model whose library resizes without antialiasing.
Pixels = NDArray[np.uint8] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Settings of the steps between a decoded image and the model."""

    resize: int | tuple[int, int]  # pixels of the shorter side after resizing; or a width and height to stretch to
    crop: tuple[int, int] | None  # width and height of the centre that is cut out; None for the whole image
    interpolation: str  # the filter, by Pillow's name in lower case
    mean: Levels  # of red, green and blue, for values in 0..255
    std: Levels
    is_bgr: bool = False  # the model's first channel is blue
    is_rounded: bool = False  # the offset of the crop is rounded, as in torchvision, or cut off, as in transformers
    # One pixel is made of all pixels of its area, or of the four nearest to its middle, as torch's `interpolate` does;
    # that keeps fractions.
    is_antialiased: bool = True

    @classmethod
    def read(cls, folder: Path) -> "Preprocessing":
        """Read an archive's file: a worker would need seconds to import the library that it was derived from."""
        content = json.loads((folder / PREPROCESSING).read_text(encoding="utf-8"))
        values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
        return cls(**values)

    def write(self, folder: Path) -> None:
        (folder / PREPROCESSING).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def size(self) -> tuple[int, int] | None:
        """The width and height of the model's input; None if they depend on the image."""
        stretched = None if isinstance(self.resize, int) else self.resize
        return self.crop or stretched

    @property
    def least_side(self) -> int:
        """Pixels of a side below which resizing enlarges an image."""
        return self.resize if isinstance(self.resize, int) else max(self.resize)

    def resized_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height of a resized image; both libraries round the longer side down."""
        if not isinstance(self.resize, int):
            return self.resize
        short = min(width, height)
        return int(self.resize * width / short), int(self.resize * height / short)

    def fit(self, image: Image.Image) -> Pixels:
        """Resize and crop an RGB image to the model's input: (H, W, 3), RGB, 0..255."""
        resized = self.resized_size(*image.size)
        if not self.is_antialiased:
            return _interpolate(np.asarray(image), resized)
        size = self.crop or resized
        whole = round if self.is_rounded else int
        left, top = (whole((new - side) / 2) for new, side in zip(resized, size, strict=True))
        box = (left, top, left + size[0], top + size[1])
        resample = Image.Resampling[self.interpolation.upper()]
        if max(resized) <= LONG * min(resized):
            return np.asarray(image.resize(resized, resample).crop(box))
        across, down = (side / new for side, new in zip(image.size, resized, strict=True))
        part = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
        return np.asarray(image.resize(size, resample, part))


def to_levels(values: Any) -> Levels:
    """Turn statistics of values in 0..1 into statistics of values in 0..255."""
    red, green, blue = (255 * float(value) for value in values)
    return red, green, blue


def find_neighbours(own: int, wanted: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Return, for each bilinear value as PyTorch's, its two neighbours and the share of the second."""
    at = ((np.arange(wanted, dtype=np.float32) + 0.5) * np.float32(own / wanted) - 0.5).clip(0, own - 1)
    lower = at.astype(np.intp)
    return lower, np.minimum(lower + 1, own - 1), at - lower.astype(np.float32)


def _interpolate(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.float32]:
    """Resize as torch does."""
    values: Array = pixels
    for axis, (own, wanted) in enumerate(zip(pixels.shape[:2], size[::-1], strict=True)):
        lower, upper, share = find_neighbours(own, wanted)
        first, second = values.take(lower, axis), values.take(upper, axis)
        values = first + (second.astype(np.float32) - first) * share.reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    return values
