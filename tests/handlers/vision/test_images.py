"""Images of every format and mode become what torchvision makes of them; what is none, too large or broken does not."""

import ctypes
import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import reload
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from torchvision.transforms import functional

from handlers.errors import CorruptInput, ImageTooLarge, InvalidInput, WorkTooLarge
from handlers.protocol.requests import Allowance
from handlers.tasks.image_segmentation import find_classes
from handlers.vision import images
from handlers.vision.config import PixelsConfig
from handlers.vision.metadata import MOST_BLOCKS, MOST_CHUNKS, MOST_SCANS, MOST_SEGMENTS, strip_metadata
from handlers.vision.preprocessing import Pixels, Preprocessing
from tests.photographs import crops, encoded, jpeg, path, photograph, png_chunk
from tests.tables import table

FULL = PixelsConfig(max_pixels=10_000_000, scaled_decode=False)
ALL, SCALED = replace(FULL, formats=(*FULL.formats, "TIFF", "AVIF")), PixelsConfig(max_pixels=10_000_000)
SQUARE = Preprocessing(232, (224, 224), "bilinear", (0.0, 0.0, 0.0), (255.0, 255.0, 255.0), is_rounded=True)


def decode_image(body: Any, config: PixelsConfig) -> Pixels:
    return images.decode_image(body, config, SQUARE)[0]


def torchvision_square(image: Image.Image) -> NDArray[np.uint8]:
    resized = functional.resize(image.convert("RGB"), [232], antialias=True)
    return np.asarray(functional.center_crop(resized, [224]))


CHELSEA = Image.open(path("chelsea")).convert("RGB")
# A file that a test writes when it runs: every process of a run collects all tests.
later = partial(partial, encoded)


@pytest.mark.parametrize("size", [(451, 300), (232, 232), (1201, 333), (17, 900)])
def test_image_and_its_pixels_equal_torchvision_transform(size: tuple[int, int]) -> None:
    image = CHELSEA.resize(size)
    decoded = decode_image(encoded(image, "PNG"), FULL)
    # One resampling instead of resize then crop: at most the rounding of a grey level.
    assert np.abs(decoded.astype(int) - torchvision_square(image)).max() <= 1
    np.testing.assert_array_equal(decode_image(np.asarray(image), FULL), decoded)


def test_decode_scaled_large_jpegs_stay_close_to_full() -> None:
    for body in crops(3, seed=3, sides=(1000, 3000)):
        full, scaled = decode_image(body, FULL).astype(int), decode_image(body, SCALED).astype(int)
        assert 0 < np.abs(full - scaled).mean() < 2.0


def sixteen_bit_rgb(image: Image.Image) -> bytes:
    """A PNG by hand: Pillow reads 16 bits a channel and cannot write them."""
    rows = b"".join(b"\0" + row.tobytes() for row in np.asarray(image).astype(">u2") * 257)
    header = struct.pack(">IIBBBBB", *image.size, 16, 2, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*each) for each in chunks.items())


def grey_tiff(dtype: str, scale: float = 1, **options: Any) -> bytes:
    grey = np.asarray(CHELSEA.convert("L")) * np.float32(scale)
    return encoded(Image.fromarray(grey.astype(dtype)), "TIFF", **options)


@pytest.mark.parametrize(("dtype", "scale"), [("uint8", 1), ("<u2", 257), (">u2", 257)])
def test_grey_tiff_of_8_or_16_bits_is_read_and_others_are_rejected(dtype: str, scale: int) -> None:
    for compression in (None, "tiff_lzw"):
        found = decode_image(grey_tiff(dtype, scale, compression=compression), ALL)
        assert np.abs(found.astype(int) - torchvision_square(CHELSEA.convert("L"))).max() <= 1
    other = {"uint8": {339: 2}, "<u2": {262: 0}, ">u2": {339: 2}}[dtype]
    for body in (grey_tiff("float32"), grey_tiff("int32"), grey_tiff(dtype, scale, tiffinfo=other)):
        with pytest.raises(InvalidInput, match=r"A TIFF must have|Not an image in one") as raised:
            decode_image(body, ALL)
        assert raised.value.code == 415


GREY = Image.new("L", CHELSEA.size, 200)
FRAMES = {"save_all": True, "append_images": [Image.new("P", CHELSEA.size)]}
AVIF: dict[str, Any] = {"quality": 95, "speed": 8}
PAGES = {"save_all": True, "append_images": [CHELSEA.rotate(90)]}
TRANSPARENT = {"transparency": bytes([255] * 200 + [0] * 55)}


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
# TIFF's header, whose first directory is behind 5,000 bytes: one entry, a SHORT.
FAR_EXIF = b"Exif\0\0MM\0*" + struct.pack(">I", 5008) + bytes(5000) + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, 8, 0, 0)


def described_png(keyword: str, text: str, *, is_international: bool = False) -> bytes:
    texts = PngInfo()
    (texts.add_itxt if is_international else texts.add_text)(keyword, text, zip=True)
    return encoded(CHELSEA, "PNG", pnginfo=texts)


TURNED = {"exif": exif(6)}
LITTLE_LONG = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHIII", 1, 0x0112, 4, 1, 6, 0)
ROTATED: dict[str, Any] = {"save_all": True, "append_images": [CHELSEA.rotate(180)]}
PALETTE = CHELSEA.quantize(64)


def with_alpha() -> Image.Image:
    return Image.merge("RGBA", (*CHELSEA.split(), Image.linear_gradient("L").resize(CHELSEA.size)))


def around(at: int, before: bytes = b"", behind: bytes = b"") -> bytes:
    """A JPEG with more bytes at a place and behind its end."""
    body = jpeg(CHELSEA, 95)
    return body[:at] + before + body[at:] + behind


def between_scans(segment: bytes) -> bytes:
    """A progressive JPEG with a segment in front of the tables of its second scan."""
    body = encoded(CHELSEA, "JPEG", quality=95, progressive=True)
    second = body.index(b"\xff\xc4", body.index(b"\xff\xda"))
    return body[:second] + segment[:2] + struct.pack(">H", len(segment)) + segment[2:] + body[second:]


UPRIGHT: list[Any] = [
    # A comment and an application's segment whose bytes look like the image's end or like many scans.
    *(partial(between_scans, b"\xff\xfe" + look) for look in (b"\xff\xd9", b"\xff\xda" * 99)),
    *(partial(between_scans, b"\xff\xe1" + look) for look in (b"\xff\xd9", b"\xff\xda" * 99)),
    later(CHELSEA, "JPEG", exif=FAR_EXIF, quality=95),
    partial(described_png, "Raw profile type exif", f"\nexif\n  {len(FAR_EXIF)}\n{FAR_EXIF.hex()}\n"),
    partial(described_png, "XML:com.adobe.xmp", XMP.decode(), is_international=True),
    *(later(CHELSEA.resize((902, 600)), "JPEG", exif=exif(turned), quality=95) for turned in range(1, 9)),
    *(later(CHELSEA, "AVIF", exif=exif(turned), **AVIF) for turned in (3, 6)),
    *(later(CHELSEA, kind, **TURNED) for kind in ("PNG", "TIFF")),
    later(CHELSEA, "WEBP", exif=exif(3), lossless=True),
    later(CHELSEA, "JPEG", xmp=XMP, quality=95),
    # Odd ones of public bug reports.
    later(CHELSEA, "JPEG", exif=LITTLE_LONG, quality=95),
    later(CHELSEA.convert("L"), "JPEG", quality=95),
    later(CHELSEA, "JPEG", progressive=True, quality=95),
    later(CHELSEA, "JPEG", optimize=True, subsampling=0, restart_marker_rows=1),
    partial(around, 2, b"\xff\xff\xff"),
    partial(around, 0, behind=bytes(500) + b"SEFH\xff\xda\xff\xd9" + b"x" * 7000),
    partial(around, 0, behind=jpeg(CHELSEA.convert("L"))),
    *(later(CHELSEA, kind, **ROTATED) for kind in ("MPO", "PNG")),
    later(CHELSEA, "WEBP", lossless=True, **ROTATED),
    *(later(CHELSEA.convert(mode), "PNG") for mode in ("1", "LA")),
    *(later(PALETTE, "PNG", **more) for more in ({}, {"transparency": bytes(range(0, 256, 4))})),
    later(CHELSEA, "PNG", transparency=(10, 10, 10)),
    *(later(with_alpha(), kind, lossless=True) for kind in ("PNG", "WEBP")),
    later(PALETTE, "BMP"),
]


@table(
    *((each, None) for each in UPRIGHT),
    # The same cat in every format and mode.
    (partial(jpeg, CHELSEA, 95), 2.5),
    (later(CHELSEA, "WEBP", lossless=True), 0.5),
    (later(CHELSEA, "BMP"), 0.5),
    (later(CHELSEA, "AVIF", **AVIF), 2.5),
    (later(Image.merge("RGBA", (*CHELSEA.split(), GREY)), "AVIF", **AVIF), 2.5),
    (later(CHELSEA, "TIFF"), 2.5),
    (later(CHELSEA, "TIFF", compression="tiff_lzw"), 2.5),
    (later(CHELSEA, "TIFF", compression="jpeg", quality=95), 2.5),
    (later(CHELSEA.convert("CMYK"), "TIFF"), 2.5),
    (later(CHELSEA, "TIFF", **PAGES), 2.5),
    (later(CHELSEA.quantize(256), "GIF", **FRAMES), 6.0),
    (later(CHELSEA.quantize(255), "PNG", **TRANSPARENT), 6.0),
    (later(CHELSEA.convert("RGBA"), "PNG"), 0.5),
    (later(CHELSEA.convert("CMYK"), "JPEG", quality=95), 3.0),
    (partial(sixteen_bit_rgb, CHELSEA), 0.5),
)
def test_image_of_any_kind_is_upright_what_pillow_makes_of_it(body: Callable[[], bytes], of_cat: float | None) -> None:
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(sent := body())))
    wanted = torchvision_square(upright.convert("RGBA") if upright.mode == "P" else upright)
    for geometry in (ALL, replace(ALL, scaled_decode=True)):
        pixels, own = images.decode_image(sent, geometry, SQUARE)
        assert own == upright.size
        assert np.abs(pixels.astype(int) - wanted).mean() < 2.0
    assert of_cat is None or np.abs(decode_image(sent, ALL).astype(int) - torchvision_square(CHELSEA)).mean() < of_cat


def peak_bytes() -> int:
    """Return the most memory of this process since the last call."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    Path("/proc/self/clear_refs").write_text("5")
    assert peak is not None
    return 1024 * int(peak[1])


def taken_bytes(body: bytes, config: PixelsConfig) -> int:
    """Decode a file; return the memory that the kernel counted at the most, beyond what there was before."""
    # Else glibc keeps buffers as large as those that earlier tests freed in its heap, whose holes count, too.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
    decode_image(jpeg(CHELSEA), config)
    peak_bytes()
    before = psutil.Process().memory_info().rss
    decode_image(body, config)
    return peak_bytes() - before


SIDE = 1800
M_MMAP_THRESHOLD = -3  # of malloc.h


@table(
    *((mode, "PNG", more, 1.0) for mode in ("1", "L", "LA", "I;16", "P", "RGB", "RGBA") for more in ({}, TURNED)),
    *(("P", "PNG", {"transparency": bytes(range(256))}, 1.0), ("P", "GIF", {"transparency": 0}, 1.0)),
    ("RGB", "BMP", {}, 1.0),
    *((mode, "WEBP", {"lossless": each, "method": 0}, 2.0) for mode in ("RGB", "RGBA") for each in (0, 1)),
    ("RGB", "WEBP", {"save_all": True, "append_images": [Image.new("RGB", (SIDE, SIDE), "red")]}, 2.0),
    *(("RGB", "AVIF", {"speed": 10, **more}, 2.0) for more in ({}, TURNED)),
    ("RGBA", "AVIF", {"speed": 10, "subsampling": "4:4:4"}, 2.0),
    ("RGB", "WEBP", {"lossless": 1, "method": 0, **TURNED}, 2.0),
    *(("RGB", "JPEG", more, 1.0) for more in ({}, TURNED)),
    ("RGB", "JPEG", {"progressive": True, "subsampling": 0, **TURNED}, 1.25),
    ("CMYK", "JPEG", {"progressive": True, **TURNED}, 1.5),
)
def test_decoding_takes_8_bytes_a_pixel_or_is_rejected(mode: str, format_: str, options: Any, pixels: float) -> None:
    body = encoded(Image.new(mode, (SIDE, SIDE)), format_, **options)
    # So many times its pixels are allowed, and with a tenth less it is rejected where it takes more than others.
    config = replace(ALL, max_pixels=round(1.02 * pixels * SIDE**2))
    # Other threads of this process may take memory meanwhile, but not each time.
    assert min(taken_bytes(body, config) for _ in range(3)) < 8.2 * config.max_pixels
    if pixels > 1:
        with pytest.raises(ImageTooLarge, match="are allowed, 8 for each of max_pixels"):
            decode_image(body, replace(ALL, max_pixels=round(0.9 * pixels * SIDE**2)))


def bmp(mode: str, length: int, changes: dict[int, bytes]) -> bytes:
    body = bytearray(encoded(Image.new(mode, (1, 1)), "BMP"))
    for at, data in changes.items():
        body[at : at + len(data)] = data
    return bytes(body[:length])


# A header without any pixel: a decoder finds nothing.
HUGE = bmp("RGB", 54, {18: struct.pack("<ii", 20_000, 20_000)})
# One row in 8 bits and runs of one colour, BI_RLE8.
RUNS = bmp("P", 1078, {18: struct.pack("<i", 4), 30: struct.pack("<I", 1)}) + b"\xff\x00\x00\x00\x00\x01"
CAT = encoded(CHELSEA, "AVIF", speed=10)


@table(
    *((b"", 400, "empty"), (b"not an image", 415, "Not an image in one of the formats")),
    (encoded(Image.new("RGB", (9, 9)), "TIFF"), 415, "Not an image in one of the formats"),
    (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99), 415, "HEIC is not accepted; convert the image to one of"),
    (CAT, 415, "AVIF is not accepted; convert the image to one of"),
    (CAT[:4000], 422, "AVIF data is truncated or broken"),
    (photograph("rocket")[:20_000], 422, "truncated or broken"),
    (photograph("chelsea")[:-20_000] + b"\0" * 20_000, 422, "truncated or broken"),
    (photograph("rocket")[:10], 422, "header is broken"),
    (HUGE, 413, "has 400000000 pixels; max_pixels is 10000000"),
    (encoded(Image.new("1", (20_000, 20_000)), "PNG"), 413, "max_pixels is 10000000"),
    (RUNS, 415, "run-length encoded"),
    *(("text", 400, "An image must be bytes"), ({"b64": 7}, 400, '"b64" must be a string')),
    *(({"b64": "data:image/png,AAAA"}, 422, "must be base64"), ({"b64": "A*"}, 422, "not valid base64")),
    *((np.zeros(shape, np.uint8), 400, "must be UINT8 .B, H, W, 3.") for shape in ((2, 3), (2, 3, 4), (0, 3, 3))),
    (np.zeros((2, 3, 3), np.int8), 400, "must be UINT8 .B, H, W, 3."),
)
def test_decode_bad_bytes_are_rejected_each_with_its_own_error(body: Any, code: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as raised:
        decode_image(body, ALL if message.startswith("AVIF data") else FULL)
    assert raised.value.code == code


def test_images_at_the_limit_are_decoded_until_those_of_a_request_are_over_theirs() -> None:
    config, allowance = PixelsConfig(max_pixels=10_000, max_request_pixels=20_000), Allowance()
    for value in (encoded(Image.new("L", (50, 200)), "PNG"), np.zeros((100, 100, 3), np.uint8)):
        images.open_image(value, config, allowance, 16)
    for value in (encoded(Image.new("L", (1, 1)), "PNG"), np.zeros((1, 1, 3), np.uint8)):
        with pytest.raises(WorkTooLarge, match="more pixels together than max_request_pixels, 20000"):
            images.open_image(value, config, allowance, 16)


def test_limit_is_the_models_where_pillow_only_warns() -> None:
    """Of up to twice its limit; the test runner would make an error of any warning."""
    small = PixelsConfig(max_pixels=10_000)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        reload(images)
        for height in (101, 201, 1000):
            with pytest.raises(ImageTooLarge, match=f"The image has {100 * height} pixels; max_pixels is 10000."):
                images.open_image(encoded(Image.new("L", (100, height)), "PNG"), small, None, 16)


# The cost of a file's metadata is bounded: counted if possible, and measured with Pillow.
SMALL = Image.new("RGB", (64, 48), "red")


def segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def with_parts(format_: str, at: int, *parts: bytes) -> bytes:
    body = jpeg(SMALL) if format_ == "JPEG" else encoded(SMALL, format_)
    return b"".join([body[:at], *parts, body[at:]])


with_segments, with_chunks = partial(with_parts, "JPEG", 2), partial(with_parts, "PNG", 33)


def with_extensions(extensions: bytes) -> bytes:
    body = encoded(SMALL.quantize(4), "GIF")
    table = 13 + (3 << ((body[10] & 7) + 1))
    return body[:table] + extensions + body[table:]


def with_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    body = encoded(SMALL, "JPEG", progressive=True)
    last = body[body.rindex(b"\xff\xda") : -2]
    return body[:-2] + last * (scans - body.count(b"\xff\xda")) + body[-2:]


@table(
    pytest.param(with_segments(segment(0xE1, b"Exif\0\0A") * 20_000), id="jpeg-exif"),
    pytest.param(with_segments(segment(0xFE, b"x") * (MOST_SEGMENTS + 1)), id="jpeg-comments"),
    pytest.param(with_scans(MOST_SCANS + 1), id="jpeg-scans"),
    pytest.param(with_chunks(png_chunk(b"abCd", b"") * (MOST_CHUNKS + 1)), id="png-chunks"),
    pytest.param(with_extensions(b"\x21\xfe\x01A\0" * MOST_BLOCKS), id="gif-extensions"),
    pytest.param(with_extensions(b"\x21\xfe" + b"\x01A" * MOST_BLOCKS + b"\0"), id="gif-blocks"),
)
def test_decode_a_file_of_more_parts_than_an_image_needs_is_rejected(body: bytes) -> None:
    with pytest.raises(ImageTooLarge, match="more than"):
        images.open_image(body, SCALED, None, 232)
    images.open_image(with_scans(MOST_SCANS), SCALED, None, 232)


def test_file_that_is_cut_off_anywhere_is_corrupt_and_never_unknown() -> None:
    """chelsea.png has metadata of some kilobytes before its pixels."""
    ended = jpeg(SMALL)[:2] + b"\xff\xd9" + jpeg(SMALL)[2:]
    for header in (b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\xff\xff", ended, b"GIF89a"):
        with pytest.raises(CorruptInput):
            strip_metadata(header)
    whole = photograph("chelsea")
    assert whole.startswith(b"\x89PNG")
    for size in (200, 1000, 5000, len(whole) // 2):
        with pytest.raises(CorruptInput):
            images.open_image(whole[:size], SCALED, None, 232)


@table((4, 3), (3, 9), (14, 10), (7, 5))
def test_resizing_without_antialiasing_is_that_of_torch(width: int, height: int) -> None:
    pixels = np.random.default_rng(width).integers(0, 256, (5, 7, 3), np.uint8)
    levels = (0.0, 0.0, 0.0)
    fitting = Preprocessing((width, height), None, "bilinear", levels, levels, is_antialiased=False)
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    (expected,) = torch.nn.functional.interpolate(batch, (height, width), mode="bilinear").permute(0, 2, 3, 1)
    np.testing.assert_allclose(fitting.fit(Image.fromarray(pixels)), expected, atol=1e-3)


def test_class_and_probability_of_a_pixel_are_those_of_its_place() -> None:
    """Where four neighbours have one class the probability is the nearest one's; elsewhere that of enlarged logits."""
    logits = np.random.default_rng(1).random((3, 4, 5), np.float32)
    logits[1, :, :3] += 2
    logits[2, :, 3:] += 2
    classes, probabilities = find_classes(logits, (20, 8))
    batch = torch.from_numpy(logits)[None]
    enlarged = torch.nn.functional.interpolate(batch, (8, 20), mode="bilinear")[0].softmax(0).amax(0)
    nearest = torch.nn.functional.interpolate(batch.softmax(1), (8, 20), mode="nearest-exact")[0].amax(0)
    # The classes change between the third and the fourth of five columns, at pixels 10 to 13.
    expected = torch.cat([nearest[:, :10], enlarged[:, 10:14], nearest[:, 14:]], 1)
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    assert classes.tolist() == [[1] * 12 + [2] * 8] * 8
