"""Makes inputs in two parts: to calibrate int8 with, and to compare it with fp32.

    photographs of scikit-image and scikit-learn -> squares of chance, some mirrored -> JPEGs, by part
    sentences of the tests                       -> those of this project, those of books

No photograph and no sentence is in both parts.
"""

from pathlib import Path
from typing import NamedTuple

from deploy.models import ROOT
from tests import photographs
from tests.photographs import folder_of, path

# Held out: the subjects of networks for photographs, such as a cat, an espresso, a palace and a flower.
HELD_OUT = tuple(path(name) for name in ("chelsea", "coffee", "astronaut", "china", "flower"))
NAMES = "rocket.jpg motorcycle_left.png hubble_deep_field.jpg retina.jpg ihc.png camera.png coins.png brick.png"
CALIBRATION = tuple(folder_of("skimage") / "data" / name for name in f"{NAMES} grass.png gravel.png".split())
SENTENCES = ROOT / "tests" / "sentences_en.txt"
# Pixels of a JPEG's side. What clients send differs.
SIDES = (240, 641)


class Parts(NamedTuple):
    """Inputs of one kind: int8 learns ranges of activations from the first ones."""

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


def crops(count: int) -> Parts:
    """Make so many crops of either part's photographs; the bytes are the same in every process."""
    made = [
        photographs.crops(count, 0, SIDES, least_share=0.5, files=each, is_mirrored=True)
        for each in (CALIBRATION, HELD_OUT)
    ]
    return Parts(*made)


def sentences() -> Parts:
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    every = [line.encode() for line in lines if not line.startswith("#")]
    middle = len(every) // 2
    return Parts(every[middle:], every[:middle])
