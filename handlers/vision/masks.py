"""Write maps of classes, (H, W) uint8, as clients read them. Pure.

map                      -> png  -> a PNG in base64, whose grey values are the classes
one class of it          -> png  -> the same, 255 where it is and 0 elsewhere
one class of it          -> rle  -> {"size": [H, W], "counts": "..."}, as pycocotools has it
Accept: application/x-npy        -> LabelFile -> a .npy file
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from handlers.errors import ItemError
from handlers.protocol.responses import OneItem, Reply

NPY = "application/x-npy"
# Groups of five bits that a run of less than 2^31 pixels, or the difference of two, takes at most.
GROUPS = 7


def png(values: NDArray[np.uint8]) -> str:
    """Write grey values as a PNG in base64."""
    with io.BytesIO() as file:
        Image.fromarray(values).save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode()


def rle(mask: NDArray[np.bool_]) -> Mapping[str, Any]:
    """Write run lengths, down the columns, as COCO compresses them.

    Runs of 0 and of 1 take turns, 0 first. From the fourth on each is the difference to the run before the last one.
    A number is written in groups of five bits, the lowest first, with a sixth bit where another group follows, as
    characters from "0" on (rleToString of cocoapi/common/maskApi.c).
    """
    pixels = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(pixels)) + 1
    runs = np.diff(np.concatenate(([0] if not pixels[0] else [0, 0], edges, [pixels.size])))
    rest = runs.copy()
    rest[3:] -= runs[1:-2]
    groups = np.zeros((GROUPS, len(runs)), np.uint8)
    is_written, more = np.zeros((GROUPS, len(runs)), bool), np.ones(len(runs), bool)
    for group, written in zip(groups, is_written, strict=True):
        written[:] = more
        bits, rest = rest & 31, rest >> 5
        more = more & np.where(bits & 16, rest != -1, rest != 0)
        group[:] = bits + 32 * more + ord("0")
    counts = groups.T[is_written.T].tobytes().decode("ascii")
    return {"size": list(mask.shape), "counts": counts}


@dataclass(frozen=True, slots=True)
class LabelFile:
    """The form of an answer that is the map alone, as a .npy file; see `handlers.protocol.responses.Form`."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`."""
        (result,) = results
        if isinstance(result, ItemError):
            return OneItem().pack(results)
        with io.BytesIO() as file:
            np.save(file, result)
            return Reply(200, file.getvalue(), NPY)
