"""Makes photographs to send: square JPEGs of those that come with scikit-image and scikit-learn."""

import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps


@dataclass(frozen=True, slots=True)
class Tuning:
    """The size of the JPEGs, chosen: that of a photograph on a web page, some 100 KB."""

    # Pixels of a side.
    side: int = 720
    # Quality of 1..95, as Pillow counts.
    quality: int = 90


TUNING = Tuning()
SOURCES = {
    "skimage": (
        "data/astronaut.png",
        "data/chelsea.png",
        "data/coffee.png",
        "data/hubble_deep_field.jpg",
        "data/motorcycle_left.png",
        "data/rocket.jpg",
    ),
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
}


def photographs() -> list[bytes]:
    """Make eight square photographs as JPEG; the bytes are the same in every process."""
    return [_jpeg(folder_of(package) / name) for package, names in SOURCES.items() for name in names]


def folder_of(package: str) -> Path:
    """Find the folder of an installed package.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    # The package is found but not imported, since only its data files are wanted.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed; it holds the photographs", name=package)
    return Path(spec.submodule_search_locations[0])


def _jpeg(path: Path) -> bytes:
    with Image.open(path) as image, io.BytesIO() as body:
        ImageOps.fit(image.convert("RGB"), (TUNING.side, TUNING.side)).save(body, "JPEG", quality=TUNING.quality)
        return body.getvalue()
