"""Photographs in the public domain that scikit-image and scikit-learn carry, and their labels by trained networks."""

import importlib.util
import io
import random
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from PIL import Image, ImageOps

# Top 1 of the trained networks, torchvision preprocessing, fp32, as published with the packages' weights.
MOBILENET_TOP_1 = {"chelsea": "Egyptian cat", "coffee": "espresso", "china": "palace"}
RESNET18_TOP_1 = {"chelsea": "Egyptian cat", "coffee": "espresso"}

FILES = {
    "chelsea": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "astronaut": ("skimage", "data/astronaut.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
}


def path(name: str) -> Path:
    package, file = FILES[name]
    return folder_of(package) / file


def folder_of(package: str) -> Path:
    """Where an installed package lies; it is not imported, since only its data files are wanted."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@cache
def photograph(name: str) -> bytes:
    return path(name).read_bytes()


def jpeg(image: Image.Image, quality: int = 90) -> bytes:
    return encoded(image.convert("RGB"), "JPEG", quality=quality)


def encoded(image: Image.Image, image_format: str, **options: object) -> bytes:
    with io.BytesIO() as body:
        image.save(body, image_format, **options)
        return body.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@cache
def crops(
    count: int,
    seed: int = 0,
    sides: tuple[int, int] = (600, 2000),
    *,
    least_share: float = 0.7,
    files: Sequence[Path] = (),
    is_mirrored: bool = False,
) -> list[bytes]:
    """Random crops of photographs as square JPEGs, enlarged to what a camera sends, half of them mirrored if wanted."""
    generator = random.Random(seed)
    pictures = [Image.open(file).convert("RGB") for file in files or map(path, FILES)]
    made = []
    for index in range(count):
        picture = pictures[index % len(pictures)]
        width, height = picture.size
        side = int(min(width, height) * generator.uniform(least_share, 1.0))
        left, top = generator.randrange(width - side + 1), generator.randrange(height - side + 1)
        enlarged = generator.randrange(*sides)
        crop = picture.crop((left, top, left + side, top + side)).resize((enlarged, enlarged), Image.Resampling.BICUBIC)
        made.append(jpeg(ImageOps.mirror(crop) if is_mirrored and generator.random() < 0.5 else crop))
    return made
