"""Photographs in the public domain that scikit-image and scikit-learn carry, and their labels by trained networks."""

import importlib.util
import io
import random
from functools import cache
from pathlib import Path

from PIL import Image

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
    """Where the installed package has the file."""
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
    """The file as it stands."""
    return path(name).read_bytes()


def jpeg(image: Image.Image, quality: int = 90) -> bytes:
    """An image as a JPEG."""
    return encoded(image.convert("RGB"), "JPEG", quality=quality)


def encoded(image: Image.Image, image_format: str, **options: object) -> bytes:
    """An image in one of Pillow's formats."""
    with io.BytesIO() as body:
        image.save(body, image_format, **options)
        return body.getvalue()


@cache
def crops(count: int, seed: int = 0, sides: tuple[int, int] = (600, 2000)) -> list[bytes]:
    """Random large crops of the photographs, enlarged to what a camera sends, as square JPEGs."""
    generator = random.Random(seed)
    pictures = [Image.open(path(name)).convert("RGB") for name in FILES]
    made = []
    for index in range(count):
        picture = pictures[index % len(pictures)]
        width, height = picture.size
        side = int(min(width, height) * generator.uniform(0.7, 1.0))
        left, top = generator.randrange(width - side + 1), generator.randrange(height - side + 1)
        crop = picture.crop((left, top, left + side, top + side))
        enlarged = generator.randrange(*sides)
        made.append(jpeg(crop.resize((enlarged, enlarged), Image.Resampling.BICUBIC)))
    return made
