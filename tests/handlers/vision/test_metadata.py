"""The cost of a file's metadata is bounded: counted if possible, and measured with Pillow."""

import struct

import pytest
from PIL import Image

from handlers.errors import CorruptInput, ImageTooLarge
from handlers.vision.config import PixelsConfig
from handlers.vision.images import open_image
from handlers.vision.metadata import MOST_BLOCKS, MOST_CHUNKS, MOST_SCANS, MOST_SEGMENTS, strip_metadata
from tests.photographs import encoded, jpeg, photograph, png_chunk

LIMITS = PixelsConfig(max_pixels=10_000_000)
SMALL = Image.new("RGB", (64, 48), "red")


def segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def with_segments(*segments: bytes) -> bytes:
    body = jpeg(SMALL)
    return b"".join([body[:2], *segments, body[2:]])


def with_chunks(*chunks: bytes) -> bytes:
    body = encoded(SMALL, "PNG")
    return b"".join([body[:33], *chunks, body[33:]])


def with_extensions(extensions: bytes) -> bytes:
    body = encoded(SMALL.quantize(4), "GIF")
    table = 13 + (3 << ((body[10] & 7) + 1))
    return body[:table] + extensions + body[table:]


def with_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    body = encoded(SMALL, "JPEG", progressive=True)
    last = body[body.rindex(b"\xff\xda") : -2]
    return body[:-2] + last * (scans - body.count(b"\xff\xda")) + body[-2:]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(with_segments(segment(0xE1, b"Exif\0\0A") * 20_000), id="jpeg-exif"),
        pytest.param(with_segments(segment(0xFE, b"x") * (MOST_SEGMENTS + 1)), id="jpeg-comments"),
        pytest.param(with_scans(MOST_SCANS + 1), id="jpeg-scans"),
        pytest.param(with_chunks(png_chunk(b"abCd", b"") * (MOST_CHUNKS + 1)), id="png-chunks"),
        pytest.param(with_extensions(b"\x21\xfe\x01A\0" * MOST_BLOCKS), id="gif-extensions"),
        pytest.param(with_extensions(b"\x21\xfe" + b"\x01A" * MOST_BLOCKS + b"\0"), id="gif-blocks"),
    ],
)
def test_decode_a_file_of_more_parts_than_an_image_needs_is_refused(body: bytes) -> None:
    with pytest.raises(ImageTooLarge, match="more than"):
        open_image(body, LIMITS, None, 232)


def test_file_that_is_cut_off_anywhere_is_corrupt_and_never_unknown() -> None:
    """chelsea.png has metadata of some kilobytes before its pixels."""
    for header in (
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xe0\xff\xff",
        jpeg(SMALL)[:2] + b"\xff\xd9" + jpeg(SMALL)[2:],
        b"GIF89a",
    ):
        with pytest.raises(CorruptInput):
            strip_metadata(header)
    whole = photograph("chelsea")
    assert whole.startswith(b"\x89PNG")
    for size in (200, 1000, 5000, len(whole) // 2):
        with pytest.raises(CorruptInput):
            open_image(whole[:size], LIMITS, None, 232)
