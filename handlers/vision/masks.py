"""Write maps of classes, (H, W) uint8, as clients read them. Pure.

map                      -> png  -> a PNG in base64, whose grey values are the classes
one class of it          -> png  -> the same, 255 where it is and 0 elsewhere
"""

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def png(values: NDArray[np.uint8]) -> str:
    """Write grey values as a PNG in base64."""
    with io.BytesIO() as file:
        Image.fromarray(values).save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode()
