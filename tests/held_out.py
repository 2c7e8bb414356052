"""Makes inputs in two parts: to calibrate int8 with, and to compare it with fp32.

    photographs of scikit-image and scikit-learn -> squares of chance, some mirrored -> JPEGs, by part
    sentences of the tests                       -> those of this project, those of books

No photograph and no sentence is in both parts.
"""

import importlib.util
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from deploy.models import ROOT

# Package -> files of it.
Sources = Mapping[str, Sequence[str]]

# What networks for photographs are made for is held out: a cat, an espresso, a palace, a flower, a woman.
HELD_OUT: Sources = {
    "skimage": ("data/chelsea.png", "data/coffee.png", "data/astronaut.png"),
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
}
CALIBRATION: Sources = {
    "skimage": (
        "data/rocket.jpg",
        "data/motorcycle_left.png",
        "data/hubble_deep_field.jpg",
        "data/retina.jpg",
        "data/ihc.png",
        "data/camera.png",
        "data/coins.png",
        "data/brick.png",
        "data/grass.png",
        "data/gravel.png",
    ),
}
SENTENCES = ROOT / "tests" / "sentences_en.txt"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The number of inputs, and how they differ."""

    # Crops of either part: as many as a share of 0.99 needs, and a fifth more.
    crops: int = 120
    # Side of a crop, as a share of the photograph's shorter one: lowest and highest.
    shares: tuple[float, float] = (0.5, 1.0)
    # Pixels of its side as a JPEG, lowest and highest, and the JPEG's quality: what clients send differs as well.
    sides: tuple[int, int] = (240, 640)
    quality: int = 90
    seed: int = 0


TUNING = Tuning()


class Parts(NamedTuple):
    """Inputs of one kind.

    Attributes:
        calibration: int8 learns the ranges of activations from them.
        held_out: for the comparison alone.
    """

    calibration: list[bytes]
    held_out: list[bytes]

    def write(self, folder: Path, suffix: str) -> tuple[Path, Path]:
        """Write a folder for each part, a file for each input; returns both.

        Args:
            folder: an existing one.
            suffix: of the files' names, with its dot.
        """
        written = []
        for name, inputs in zip(self._fields, self, strict=True):
            (folder / name).mkdir()
            for number, body in enumerate(inputs):
                (folder / name / f"{number:03d}{suffix}").write_bytes(body)
            written.append(folder / name)
        return written[0], written[1]


@cache
def crops(count: int = TUNING.crops) -> Parts:
    """Make so many crops of either part's photographs; the bytes are the same in every process."""
    return Parts(*(_crops(sources, count, random.Random(TUNING.seed)) for sources in (CALIBRATION, HELD_OUT)))


def sentences() -> Parts:
    """Read sentences: those written for this project, and those of books."""
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    every = [line.encode() for line in lines if not line.startswith("#")]
    middle = len(every) // 2
    return Parts(every[middle:], every[:middle])


def _crops(sources: Sources, count: int, generator: random.Random) -> list[bytes]:
    pictures = []
    for package, names in sources.items():
        for name in names:
            with Image.open(_folder_of(package) / name) as image:
                pictures.append(image.convert("RGB"))
    return [_crop(pictures[index % len(pictures)], generator) for index in range(count)]


def _folder_of(package: str) -> Path:
    """Find an installed package; it is not imported, since only its data files are wanted."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _crop(picture: Image.Image, generator: random.Random) -> bytes:
    width, height = picture.size
    side = round(min(width, height) * generator.uniform(*TUNING.shares))
    left, top = generator.randrange(width - side + 1), generator.randrange(height - side + 1)
    length = generator.randint(*TUNING.sides)
    crop = picture.crop((left, top, left + side, top + side)).resize((length, length), Image.Resampling.BICUBIC)
    with io.BytesIO() as body:
        (ImageOps.mirror(crop) if generator.random() < 0.5 else crop).save(body, "JPEG", quality=TUNING.quality)
        return body.getvalue()
