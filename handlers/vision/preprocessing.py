"""How an image becomes the pixels that a model sees, and what they are normalised by: as the model's own library does.

the builder -> preprocessing.json -> Preprocessing -> pixels: an image in RGB -> (H, W, 3) uint8
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PREPROCESSING = "preprocessing.json"
# Of an image that is longer than this many times its width, only what the crop keeps is computed: the whole may have
# any number of pixels. Pillow then rounds some pixels otherwise, by one level of 256 on average.
LONG = 8

Levels = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What is done to an image.

    Attributes:
        resize: the length that the shorter side is resized to, in pixels; or a width and height to stretch to.
        crop: the width and height of the centre that is then cut out; None for all.
        interpolation: the filter, by Pillow's name in lower case.
        mean, std: what values in 0..255 are normalised by, for red, green and blue.
        is_bgr: whether the model takes blue first.
        is_rounded: whether the offset of the crop is rounded, as in torchvision, or cut off, as in transformers.
        is_antialiased: whether all pixels of an area count that becomes one pixel, or only the four that are nearest
            to its middle, as with torch's `interpolate`.
    """

    resize: int | tuple[int, int]
    crop: tuple[int, int] | None
    interpolation: str
    mean: Levels
    std: Levels
    is_bgr: bool = False
    is_rounded: bool = False
    is_antialiased: bool = True

    @classmethod
    def read(cls, folder: Path) -> "Preprocessing":
        """Read what the builder found out: the libraries take a worker seconds to import."""
        said = json.loads((folder / PREPROCESSING).read_text(encoding="utf-8"))
        values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
        return cls(**values)

    def write(self, folder: Path) -> None:
        """Write it into an archive's folder."""
        (folder / PREPROCESSING).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def size(self) -> tuple[int, int] | None:
        """The width and height that the model sees; None if they depend on the image."""
        stretched = None if isinstance(self.resize, int) else self.resize
        return self.crop or stretched

    @property
    def least(self) -> int:
        """The pixels of a side that an image needs."""
        return self.resize if isinstance(self.resize, int) else max(self.resize)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that an image is resized to; both libraries cut the longer one off."""
        if not isinstance(self.resize, int):
            return self.resize
        short = min(width, height)
        return int(self.resize * width / short), int(self.resize * height / short)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """Make of an image in RGB what the model sees: (H, W, 3) uint8, RGB."""
        resized = self.resized(*image.size)
        if not self.is_antialiased:
            return _interpolated(np.asarray(image), resized)
        size, resample = self.crop or resized, Image.Resampling[self.interpolation.upper()]
        whole = round if self.is_rounded else int
        left, top = (whole((new - side) / 2) for new, side in zip(resized, size, strict=True))
        box: tuple[float, float, float, float] = (left, top, left + size[0], top + size[1])
        if max(resized) <= LONG * min(resized):
            return np.asarray(image.resize(resized, resample).crop(box))
        across, down = (side / new for side, new in zip(image.size, resized, strict=True))
        box = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
        return np.asarray(image.resize(size, resample, box))


def levels(values: Any) -> Levels:
    """Turn statistics of values in 0..1 into those of values in 0..255."""
    red, green, blue = (255 * float(value) for value in values)
    return red, green, blue


def neighbours(own: int, wanted: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Find what torch.nn.functional.interpolate makes a row's values of, bilinear, without align_corners and antialias.

    Args:
        own: the number of values.
        wanted: the number of new ones.

    Returns:
        For each new one, the indices of the two values that it lies between, and the share of the second.
    """
    at = ((np.arange(wanted, dtype=np.float32) + 0.5) * np.float32(own / wanted) - 0.5).clip(0, own - 1)
    lower = at.astype(np.intp)
    return lower, np.minimum(lower + 1, own - 1), at - lower.astype(np.float32)


def _interpolated(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize as torch does, rounded; Pillow's own transform takes the same four pixels and rounds down."""
    values: NDArray[Any] = pixels
    for axis, (own, wanted) in enumerate(zip(pixels.shape[:2], size[::-1], strict=True)):
        lower, upper, share = neighbours(own, wanted)
        first, second = values.take(lower, axis), values.take(upper, axis)
        values = first + (second.astype(np.float32) - first) * share.reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    rounded: NDArray[np.uint8] = np.rint(values).astype(np.uint8)
    return rounded
