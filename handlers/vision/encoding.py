"""Write images and maps of classes as files. Pure."""

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def encode_image(image: Image.Image, image_format: str) -> bytes:
    with io.BytesIO() as body:
        image.save(body, image_format)
        return body.getvalue()


def make_grey_jpeg(side: int) -> bytes:
    return encode_image(Image.new("RGB", (side, side), "grey"), "JPEG")


def encode_map(values: NDArray[np.uint8]) -> str:
    """Write (H, W) values as the grey values of a PNG, in base64."""
    return base64.b64encode(encode_image(Image.fromarray(values), "PNG")).decode()
