"""Turn the bytes of an image, or its pixels, into the pixels of the model's input; and write images as files.

bytes -> metadata off -> header -> limits -> scaled decode -> RGB -> upright -> Preprocessing
pixels                           -> limits                                   -> Preprocessing
"""

import base64
import io
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, SAMPLEFORMAT

from handlers.aliases import Array
from handlers.errors import CorruptInput, EmptyInput, ImageTooLarge, InvalidBody, InvalidInput, UnsupportedMedia
from handlers.protocol.requests import Allowance
from handlers.vision.config import PixelsConfig
from handlers.vision.metadata import read_orientation, strip_metadata
from handlers.vision.preprocessing import Pixels, Preprocessing

# The brands of AVIF and HEIC behind a file's first four bytes (ISO/IEC 23008-12, annex B).
HEIF = re.compile(rb"ftyp(avi[fs]|hei[cxms]|hev[cxms]|mif1)")
# libavif starts so many threads for each image; a worker decodes several images at once.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1

# Pillow warns of odd metadata in a client's file, which is of no use in a log of the server.
warnings.filterwarnings("ignore", module=r"PIL\.")
# Up to twice its own limit of pixels Pillow only warns; warnings apply the last filter first.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
# Pillow's errors for an image with more than Image.MAX_IMAGE_PIXELS.
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)

# A scaled decode leaves the shorter side at least this many times as long as `Preprocessing` resizes it to. At 1 the
# blur of the DCT's own scaling moves logits by 5 % and changes more top answers than bf16. At 2 it moves them by 2 %,
# about as much as bf16, and a 12-megapixel JPEG still decodes in an eighth of the time (measured on trained ResNet-18
# and MobileNetV2, 120 crops).
SCALED_DECODE_MARGIN = 2

# Bytes of memory that decoding may use for each of `max_pixels`: 400 MB at the default. Pillow needs one byte a pixel
# for modes with one channel and four for others, and as much again for each copy. Measured with Pillow 12.
MOST_BYTES_A_PIXEL = 8
# Bytes a pixel of a WebP: two RGBA canvases of the animation decoder, which Pillow uses for every WebP, their bytes,
# and the image. An AVIF needs its planes, the pixels twice and the image.
DECODER_BYTES = {"WEBP": 16, "AVIF": 16}

# Pillow's modes of 16-bit samples; `convert` would clip them at 255 instead of scaling.
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
Opened = tuple[Image.Image, tuple[int, int]]  # an image, and its width and height as sent
SIDEWAYS = frozenset((5, 6, 7, 8))  # the orientations that change width and height

URL_SAFE = str.maketrans("-_", "+/")


def decode_image(
    value: object, config: PixelsConfig, preprocessing: Preprocessing, allowance: Allowance | None = None
) -> tuple[Pixels, tuple[int, int]]:
    """Decode one image; return the model's input, (H, W, 3), RGB, 0..255, and the image's own width and height."""
    image, own = open_image(value, config, allowance, preprocessing.least_side)
    return preprocessing.fit(image), own


def open_image(value: object, config: PixelsConfig, allowance: Allowance | None, least: int) -> Opened:
    """Decode one image within the limits, upright RGB, with the width and height as sent; raise an InvalidInput."""
    match value:
        case bytes() | bytearray() as body:
            return _decode(body, config, allowance, least)
        case {"b64": text}:
            return _decode(_from_base64(text), config, allowance, least)
        case np.ndarray() as pixels:
            image = _from_pixels(pixels, config, allowance)
            return image, image.size
        case _:
            raise InvalidBody('An image must be bytes, {"b64": ...} or a tensor, not text.')


def _decode(body: bytes | bytearray, config: PixelsConfig, allowance: Allowance | None, least: int) -> Opened:
    if not body:
        raise EmptyInput("The image is empty.")
    # A worker has one model, so all of its threads write one value. TorchServe's limit_max_image_pixels is only for
    # its own handlers.
    Image.MAX_IMAGE_PIXELS = config.max_pixels
    stripped = strip_metadata(body)
    try:
        image: Image.Image = Image.open(io.BytesIO(stripped.body), formats=config.formats)
    except BOMBS as error:
        raise _too_large(error, config) from None
    except UnidentifiedImageError:
        raise _unidentified(bytes(body[4:12]), config.formats) from None
    except Exception:  # Pillow's parsers raise any exception for a broken header
        raise CorruptInput("The image's header is broken.") from None
    if image.format == "BMP" and (tile := getattr(image, "tile", None)) and tile[0][0] != "raw":
        # Pillow decodes these in Python, a pixel at a time, and a thousand bytes may encode any number of pixels.
        raise UnsupportedMedia("A run-length encoded BMP is not supported; send it uncompressed, or as PNG.")
    if image.format == "TIFF" and not _is_plain_tiff(image):
        raise UnsupportedMedia(
            "A TIFF must have unsigned samples of at most 8 bits or of 16 with black as zero; convert it."
        )
    width, height = image.size
    _check_size(width, height, config, allowance)
    format_ = image.format
    try:
        if config.scaled_decode:
            enough = SCALED_DECODE_MARGIN * least
            image.draft(None, (enough, enough))
        exif, xmp = (
            (stripped.exif, stripped.xmp) if image.format not in DECODER_BYTES else map(image.info.get, ("exif", "xmp"))
        )
        number = read_orientation(exif or b"", xmp or b"")
        _check_memory(image, width * height, config, is_turned=number in TURNS)
        image = _to_rgb(image)  # under another name, the original would stay in memory beside its copies
        if number in TURNS:
            image = image.transpose(TURNS[number])
        return image, (height, width) if number in SIDEWAYS else (width, height)
    except BOMBS as error:
        raise _too_large(error, config) from None
    except ImageTooLarge:
        raise
    except Exception:  # Pillow's decoders raise any exception for broken data
        raise CorruptInput(f"The {format_ or 'image'} data is truncated or broken.") from None


def _unidentified(brand: bytes, formats: Sequence[str]) -> InvalidInput:
    """Return the error for a file that Pillow does not know; `brand` is that of ISO/IEC 14496-12, behind its length."""
    names = ", ".join(formats)
    if brand in (b"ftypavif", b"ftypavis") and "AVIF" in formats:
        return CorruptInput("The AVIF data is truncated or broken.")
    if found := HEIF.match(brand):
        kind = "AVIF" if found[1].startswith(b"av") else "HEIC"
        return UnsupportedMedia(f"{kind} is not accepted; convert the image to one of {names}.")
    return UnsupportedMedia(f"Not an image in one of the formats {names}.")


def _is_plain_tiff(image: Any) -> bool:
    """Whether Pillow, and `_to_rgb`, read a TIFF's samples as its tags mean them (TIFF 6.0, section 8)."""
    bits, kinds = ({*image.tag_v2.get(tag, (1,))} for tag in (BITSPERSAMPLE, SAMPLEFORMAT))
    is_white_zero = image.tag_v2.get(PHOTOMETRIC_INTERPRETATION, 0) == 0
    is_known = image.mode not in ("I", "F", "LAB") and bits <= {1, 2, 4, 8, 16} and kinds == {1}
    return is_known and not (is_white_zero and 16 in bits)


def _from_base64(text: object) -> bytes:
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


def _from_pixels(pixels: Array, config: PixelsConfig, allowance: Allowance | None) -> Image.Image:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise InvalidBody("A tensor of pixels must be UINT8 [B, H, W, 3], RGB; send image files as BYTES [B].")
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
    """Reject an image if decoding it needs too much memory; it had `pixels` before libjpeg's scaling."""
    decoded = image.width * image.height
    own = 1 if image.mode in ("1", "L", "P") else 4
    copied = decoded * max(own if image.mode == "RGB" else own + 4, 8 if is_turned else 0)
    coefficients = 0
    if isinstance(image, JpegImageFile):
        # libjpeg keeps all coefficients of a JPEG with several scans, two bytes each, scaled or not.
        horizontal, vertical = (max(layer[at] for layer in image.layer) for at in (1, 2))
        coefficients = 2 * pixels * sum(layer[1] * layer[2] for layer in image.layer) // (horizontal * vertical)
    limit = MOST_BYTES_A_PIXEL * config.max_pixels
    size = max(coefficients + decoded * DECODER_BYTES.get(image.format or "", own), copied)
    if size > limit:
        raise ImageTooLarge(f"Decoding the image needs {size} bytes; {limit} are allowed, 8 for each of max_pixels.")


def _too_large(error: Exception, config: PixelsConfig) -> ImageTooLarge:
    """Return the error for an image that Pillow rejected; Pillow's message contains the number of pixels."""
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
    # Pillow would warn of the transparency of a palette. Alpha is dropped in any case.
    image.info.pop("transparency", None)
    return image.convert("RGB")


def encode_image(image: Image.Image, image_format: str) -> bytes:
    with io.BytesIO() as body:
        image.save(body, image_format)
        return body.getvalue()


def make_grey_jpeg(side: int) -> bytes:
    return encode_image(Image.new("RGB", (side, side), "grey"), "JPEG")


def encode_map(values: NDArray[np.uint8]) -> str:
    """Write (H, W) values as the grey values of a PNG, in base64."""
    return base64.b64encode(encode_image(Image.fromarray(values), "PNG")).decode()
