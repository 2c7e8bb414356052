"""Turn the bytes of an image, or its pixels, into the pixels that a model sees.

bytes -> metadata off -> header -> limits -> scaled decode -> RGB -> upright -> Preprocessing
pixels                           -> limits                                   -> Preprocessing
"""

import base64
import io
import re
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from handlers.errors import CorruptInput, EmptyInput, ImageTooLarge, InvalidBody, UnsupportedMedia
from handlers.protocol.requests import Allowance
from handlers.vision.config import PixelsConfig
from handlers.vision.metadata import orientation, strip
from handlers.vision.preprocessing import Preprocessing

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")

# Pillow warns of odd metadata in a client's file, which is of no use in a server's log.
warnings.filterwarnings("ignore", module=r"PIL\.")
# Beyond its own limit it only warns, up to twice that; the last filter comes first.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
# What Pillow raises where an image has more than Image.MAX_IMAGE_PIXELS.
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)

# A scaled decode leaves the shorter side at least this many times as long as `Preprocessing` resizes it to. At 1 the
# blur of the DCT's own scaling moves logits by 5% and more top answers than bf16 does; at 2 it moves them by 2%, about
# as much as bf16 does, and a 12-megapixel JPEG still decodes in an eighth of the time (measured on trained ResNet-18
# and MobileNetV2, 120 crops).
SCALED_DECODE_MARGIN = 2

# Bytes of memory that decoding may take for each of `max_pixels`: 400 MB at the default. Pillow takes one a pixel of
# modes with one channel and four of others, and the same again for each copy. Measured with Pillow 12.
MOST_BYTES_A_PIXEL = 8
# Of a WebP: two canvases of the animation decoder, RGBA, which Pillow uses for all; their bytes; and the image.
WEBP_BYTES = 16

# Pillow holds 16-bit samples in these modes; `convert` would clip them at 255 instead of scaling.
SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")

# The transposition that turns an image upright, by its orientation in Exif.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The orientations that change width and height.
SIDEWAYS = frozenset((5, 6, 7, 8))

URL_SAFE = str.maketrans("-_", "+/")


def decode_image(
    value: Any, config: PixelsConfig, preprocessing: Preprocessing, allowance: Allowance | None = None
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Decode one image: what the model sees, (H, W, 3) uint8, RGB; and the image's own size; see `opened`."""
    image, own = opened(value, config, allowance, preprocessing.least)
    return preprocessing.pixels(image), own


def opened(
    value: Any, config: PixelsConfig, allowance: Allowance | None, least: int
) -> tuple[Image.Image, tuple[int, int]]:
    """Decode one image in whatever form it came.

    Args:
        value: the bytes of a file, {"b64": ...} of them, or pixels, (H, W, 3) uint8, RGB, upright. A file is JPEG,
            PNG, WebP, GIF (its first frame) or BMP; grey, palette, RGBA, CMYK and 16 bits a sample included. Alpha is
            dropped.
        config: the limits.
        allowance: its request's.
        least: pixels of a side that the model sees: libjpeg may leave out what is far more.

    Returns:
        The image, RGB and upright, and its width and height as it was sent, upright.

    Raises:
        EmptyInput: there are no bytes.
        UnsupportedMedia: the bytes are of none of the formats.
        InvalidBody: it came in another form, or its pixels are of another shape or dtype, or there are none.
        ImageTooLarge: the image has more than `max_pixels`, decoding it would take more than 8 bytes for each of these,
            or its file has more parts than an image needs.
        WorkTooLarge: with it, the images of its request have more than `max_request_pixels`.
        CorruptInput: the bytes are truncated or broken, or no base64.
    """
    match value:
        case bytes() | bytearray() as body:
            return _decoded(body, config, allowance, least)
        case {"b64": text}:
            return _decoded(_from_base64(text), config, allowance, least)
        case np.ndarray() as pixels:
            image = _of_pixels(pixels, config, allowance)
            return image, image.size
        case _:
            raise InvalidBody('An image comes as bytes, as {"b64": ...} or as a tensor, not as text.')


def _decoded(
    body: bytes | bytearray, config: PixelsConfig, allowance: Allowance | None, least: int
) -> tuple[Image.Image, tuple[int, int]]:
    if not body:
        raise EmptyInput("The image is empty.")
    # A worker has one model, so its threads all write the same. TorchServe's limit_max_image_pixels is for its own
    # handlers only.
    Image.MAX_IMAGE_PIXELS = config.max_pixels
    stripped = strip(body)
    try:
        image: Image.Image = Image.open(io.BytesIO(stripped.body), formats=FORMATS)
    except BOMBS as error:
        raise _too_large(error, config) from None
    except UnidentifiedImageError:
        raise UnsupportedMedia(f"Not an image in one of the formats {', '.join(FORMATS)}.") from None
    except Exception:  # Pillow's parsers raise whatever a broken header makes them raise
        raise CorruptInput("The image's header is broken.") from None
    if image.format == "BMP" and (tile := getattr(image, "tile", None)) and tile[0][0] != "raw":
        # Pillow decodes these in Python, a pixel at a time, and a thousand bytes may stand for any number of pixels.
        raise UnsupportedMedia("A run-length encoded BMP; send it uncompressed, or as PNG.")
    width, height = image.size
    _check_size(width, height, config, allowance)
    format_ = image.format
    try:
        if config.scaled_decode:
            enough = SCALED_DECODE_MARGIN * least
            image.draft(None, (enough, enough))
        exif, xmp = (stripped.exif, stripped.xmp) if image.format != "WEBP" else map(image.info.get, ("exif", "xmp"))
        number = orientation(exif or b"", xmp or b"")
        _check_memory(image, width * height, config, is_turned=number in TURNS)
        # Under its own name, the image as it was sent would stay beside its copies.
        image = _to_rgb(image)
        if number in TURNS:
            image = image.transpose(TURNS[number])
        return image, (height, width) if number in SIDEWAYS else (width, height)
    except BOMBS as error:
        raise _too_large(error, config) from None
    except ImageTooLarge:
        raise
    except Exception:  # likewise its decoders, for broken data
        raise CorruptInput(f"The {format_ or 'image'} data is truncated or broken.") from None


def _from_base64(text: Any) -> bytes:
    if not isinstance(text, str):
        raise InvalidBody('"b64" must be a string.')
    if text[:5].lower() == "data:":
        head, _, text = text.partition(",")
        if not head.lower().endswith(";base64"):
            raise CorruptInput('"b64": a data URI must be base64.')
    # `base64 FILE` wraps its lines; RFC 4648 has a URL-safe alphabet, and JavaScript leaves the padding out.
    digits = "".join(text.split()).translate(URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except ValueError:
        raise CorruptInput('"b64" is not valid base64.') from None


def _of_pixels(pixels: NDArray[Any], config: PixelsConfig, allowance: Allowance | None) -> Image.Image:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise InvalidBody("Pixels come as UINT8 [B, H, W, 3], RGB; other images as BYTES [B], files as they are.")
    height, width, _ = pixels.shape
    _check_size(width, height, config, allowance)
    return Image.fromarray(pixels)


def _check_size(width: int, height: int, config: PixelsConfig, allowance: Allowance | None) -> None:
    pixels, limit = width * height, config.max_pixels
    if pixels > limit:
        raise ImageTooLarge(f"The image has {width} x {height} = {pixels} pixels; max_pixels is {limit}.")
    if allowance:
        allowance.take("pixels", pixels, config.max_request_pixels)


def _check_memory(image: Image.Image, pixels: int, config: PixelsConfig, *, is_turned: bool) -> None:
    """Refuse an image of so many pixels, of which libjpeg may leave out some, if decoding takes too much memory."""
    decoded = image.width * image.height
    own = 1 if image.mode in ("1", "L", "P") else 4
    copied = decoded * max(own if image.mode == "RGB" else own + 4, 8 if is_turned else 0)
    coefficients = 0
    if isinstance(image, JpegImageFile):
        # Of a JPEG of several scans libjpeg keeps all coefficients, two bytes each, scaled or not.
        horizontal, vertical = (max(layer[at] for layer in image.layer) for at in (1, 2))
        coefficients = 2 * pixels * sum(layer[1] * layer[2] for layer in image.layer) // (horizontal * vertical)
    limit = MOST_BYTES_A_PIXEL * config.max_pixels
    size = max(coefficients + decoded * (WEBP_BYTES if image.format == "WEBP" else own), copied)
    if size > limit:
        raise ImageTooLarge(
            f"Decoding the image would take {size} bytes; {limit} are allowed, 8 for each of max_pixels."
        )


def _too_large(error: Exception, config: PixelsConfig) -> ImageTooLarge:
    """Return the error for what Pillow refused, which names the pixels in the number before that word."""
    pixels = re.search(r"(\d+) pixels", str(error))
    size = f"{pixels[1]} pixels" if pixels else "too many pixels"
    return ImageTooLarge(f"The image has {size}; max_pixels is {config.max_pixels}.")


def _to_rgb(image: Image.Image) -> Image.Image:
    """Load the first frame as RGB."""
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode in SIXTEEN_BIT_MODES:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    # Of a palette Pillow would warn. Alpha is dropped in any case.
    image.info.pop("transparency", None)
    return image.convert("RGB")


def grey_jpeg(side: int) -> bytes:
    """Return a grey square of so many pixels a side as a JPEG."""
    return encoded(Image.new("RGB", (side, side), "grey"), "JPEG")


def encoded(image: Image.Image, image_format: str) -> bytes:
    """Write an image in one of Pillow's formats."""
    with io.BytesIO() as body:
        image.save(body, image_format)
        return body.getvalue()
