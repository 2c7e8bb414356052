"""Photographs to send: square JPEGs made of those that come with scikit-image and scikit-learn."""

import importlib.util
import io
from pathlib import Path

from PIL import Image, ImageOps

SIDE = 720
QUALITY = 90
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
    """Eight photographs, SIDE x SIDE pixels, as JPEG; the same bytes in every process."""
    return [_jpeg(_folder(package) / name) for package, names in SOURCES.items() for name in names]


def _folder(package: str) -> Path:
    # Found, not imported: only its data files are wanted.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed; it holds the photographs", name=package)
    return Path(spec.submodule_search_locations[0])


def _jpeg(path: Path) -> bytes:
    with Image.open(path) as image, io.BytesIO() as body:
        ImageOps.fit(image.convert("RGB"), (SIDE, SIDE)).save(body, "JPEG", quality=QUALITY)
        return body.getvalue()
