"""Makes inputs in two parts: to calibrate int8 with, and to compare it with fp32.

    photographs of scikit-image and scikit-learn -> squares of chance, some mirrored -> JPEGs, by part
    sentences of the tests                       -> those of this project, those of books

No photograph and no sentence is in both parts.
"""

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from deploy.models import ROOT
from tests.photographs import folder_of, jpeg

# Package and file. What networks for photographs are made for is held out: a cat, an espresso, a palace, a flower.
HELD_OUT = (
    *(("skimage", f"data/{name}.png") for name in ("chelsea", "coffee", "astronaut")),
    *(("sklearn", f"datasets/images/{name}.jpg") for name in ("china", "flower")),
)
NAMES = "rocket.jpg motorcycle_left.png hubble_deep_field.jpg retina.jpg ihc.png camera.png coins.png brick.png"
CALIBRATION = tuple(("skimage", f"data/{name}") for name in f"{NAMES} grass.png gravel.png".split())
SENTENCES = ROOT / "tests" / "sentences_en.txt"
# Side of a crop, as a share of the photograph's shorter one; pixels of its side as a JPEG. What clients send differs.
SHARES, SIDES = (0.5, 1.0), (240, 640)


class Parts(NamedTuple):
    """Inputs of one kind.

    Attributes:
        calibration: int8 learns the ranges of activations from them.
        held_out: for the comparison alone.
    """

    calibration: list[bytes]
    held_out: list[bytes]

    def write(self, folder: Path, suffix: str) -> tuple[Path, Path]:
        """Write a folder for each part in an existing one, a file for each input; returns both."""
        written = []
        for name, inputs in zip(self._fields, self, strict=True):
            (folder / name).mkdir()
            for number, body in enumerate(inputs):
                (folder / name / f"{number:03d}{suffix}").write_bytes(body)
            written.append(folder / name)
        return written[0], written[1]


@cache
def crops(count: int) -> Parts:
    """Make so many crops of either part's photographs; the bytes are the same in every process."""
    return Parts(*(_crops(files, count, random.Random(0)) for files in (CALIBRATION, HELD_OUT)))


def sentences() -> Parts:
    """Read sentences: those written for this project, and those of books."""
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    every = [line.encode() for line in lines if not line.startswith("#")]
    middle = len(every) // 2
    return Parts(every[middle:], every[:middle])


def _crops(files: Sequence[tuple[str, str]], count: int, generator: random.Random) -> list[bytes]:
    pictures = [Image.open(folder_of(package) / name).convert("RGB") for package, name in files]
    return [_crop(pictures[index % len(pictures)], generator) for index in range(count)]


def _crop(picture: Image.Image, generator: random.Random) -> bytes:
    width, height = picture.size
    side = round(min(width, height) * generator.uniform(*SHARES))
    left, top = generator.randrange(width - side + 1), generator.randrange(height - side + 1)
    length = generator.randint(*SIDES)
    crop = picture.crop((left, top, left + side, top + side)).resize((length, length), Image.Resampling.BICUBIC)
    return jpeg(ImageOps.mirror(crop) if generator.random() < 0.5 else crop)
