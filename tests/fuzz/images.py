"""Images in every format that Pillow writes, and files of ours with lies in their headers.

photograph or pattern -> image -> its bytes -> lie: sizes, counts and checksums of the format's own fields changed
"""

import io
import struct
import zlib
from collections.abc import Callable
from functools import cache

from PIL import Image

from tests.fuzz.values import CANARY, Draw
from tests.photographs import path

# Formats that the handlers take, with the modes that each can hold.
TAKEN = {
    "JPEG": ("RGB", "L", "CMYK"),
    "PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P", "L", "RGB"),
    "BMP": ("RGB", "L", "P", "1", "RGBA"),
}
# Others that Pillow reads and writes: each must be refused by its first bytes.
REFUSED = (
    "TIFF",
    "PPM",
    "ICO",
    "ICNS",
    "PCX",
    "TGA",
    "SGI",
    "MSP",
    "XBM",
    "DDS",
    "JPEG2000",
    "PDF",
    "EPS",
    "AVIF",
)
DIFFERENT = 500
SIDES = (1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 64, 100, 257)
# The archives of the fuzzer take so many pixels.
MAX_PIXELS = 1_000_000
SIZES = (0, 1, 2, 8, 1000, 1001, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@cache
def _photograph(name: str) -> Image.Image:
    image = Image.open(path(name)).convert("RGB")
    image.thumbnail((300, 300))
    return image


def _picture(draw: Draw) -> Image.Image:
    image = _photograph(draw.one("chelsea", "coffee", "rocket", "china"))
    if draw.often(0.15):
        width, height = draw.one((1000, 1000), (1000, 1001), (1, 5000), (5000, 1), (1, 16_000), (999, 1001))
        return image.resize((width, height))
    return image.resize((draw.choice(SIDES), draw.choice(SIDES))) if draw.often(0.6) else image


def image(draw: Draw) -> bytes:
    """An image that a client might send; one of so many, since writing one takes longer than answering it."""
    return _image(draw.randrange(DIFFERENT))


@cache
def _image(index: int) -> bytes:
    draw = Draw(f"image {index}")
    image_format = draw.choice(list(TAKEN))
    picture = _picture(draw)
    mode = draw.choice(TAKEN[image_format])
    converted = picture.convert("L").convert(mode) if mode in ("I;16", "LA") else picture.convert(mode)
    with io.BytesIO() as written:
        converted.save(written, image_format, **_options(draw, image_format))
        return written.getvalue()


def _options(draw: Draw, image_format: str) -> dict[str, object]:
    """How it is written, with metadata as cameras and programs leave it."""
    options: dict[str, object] = {}
    if image_format in ("JPEG", "PNG", "WEBP") and draw.often(0.4):
        exif = Image.Exif()
        exif[274] = draw.one(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65535)
        exif[270] = CANARY * draw.one(1, 50)
        options["exif"] = exif.tobytes()
    if image_format == "JPEG":
        options |= {"progressive": draw.often(0.3), "quality": draw.one(1, 50, 95), "subsampling": draw.one(0, 1, 2)}
        options |= {"restart_marker_blocks": draw.one(0, 1, 3), "comment": CANARY} if draw.often(0.3) else {}
    elif image_format == "PNG":
        options |= {"compress_level": draw.one(0, 1, 9)}
    elif image_format == "WEBP":
        options |= {"lossless": draw.often(0.5), "method": 0}
    elif image_format == "GIF":
        options |= {"interlace": draw.one(0, 1), "comment": CANARY.encode()}
        if draw.often(0.3):
            options |= {"save_all": True, "append_images": [Image.new("L", (5, 5))] * draw.one(1, 20)}
    return options


def refused(draw: Draw) -> bytes:
    """An image of a format that the handlers do not take."""
    return _refused(draw.choice(REFUSED))


@cache
def _refused(image_format: str) -> bytes:
    mode = {"MSP": "1", "XBM": "1"}.get(image_format, "RGB")
    with io.BytesIO() as written:
        _photograph("coffee").resize((32, 32)).convert(mode).save(written, image_format)
        return written.getvalue()


def lying(draw: Draw) -> bytes:
    """An image with a lie in its header, or with parts that it should not have."""
    whole = bytearray(image(draw))
    for start, lie in LIES:
        if whole.startswith(start):
            return bytes(lie(draw, whole))
    return bytes(whole)


def _lying_png(draw: Draw, whole: bytearray) -> bytearray:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def header() -> None:
        struct.pack_into(">I", whole, draw.one(16, 20), draw.choice(SIZES))
        whole[24:29] = bytes(draw.one(*whole[24:29], 0, 1, 2, 3, 4, 6, 8, 16, 255) for _ in range(5))
        struct.pack_into(">I", whole, 29, zlib.crc32(whole[12:29]))

    def more() -> None:
        kinds = (
            b"tEXt",
            b"zTXt",
            b"iTXt",
            b"iCCP",
            b"tRNS",
            b"PLTE",
            b"pHYs",
            b"gAMA",
            b"eXIf",
            b"acTL",
            b"fcTL",
            b"fdAT",
        )
        inflating = b"k\0\0" + zlib.compress(bytes(draw.one(10, 10**6, 3 * 10**6)))
        data = draw.one(b"", b"\0", b"k\0" + CANARY.encode(), inflating, draw.randbytes(26))
        whole[33:33] = chunk(draw.choice(kinds), data) * draw.one(1, 2, 50, 2000)

    def length() -> None:
        struct.pack_into(">I", whole, 33, draw.choice(SIZES))

    def data() -> None:
        whole[33:] = chunk(b"IDAT", draw.one(b"", zlib.compress(bytes(10**6)), zlib.compress(b""))) + chunk(
            b"IEND", b""
        )

    draw.choice((header, more, length, data))()
    return whole


def _lying_jpeg(draw: Draw, whole: bytearray) -> bytearray:
    def size() -> None:
        for marker in (b"\xff\xc0", b"\xff\xc2"):
            if (place := whole.find(marker)) > 0:
                struct.pack_into(">H", whole, place + draw.one(5, 7), draw.choice(SIZES) & 0xFFFF)
                return

    def components() -> None:
        for marker in (b"\xff\xc0", b"\xff\xc2", b"\xff\xda", b"\xff\xdb", b"\xff\xc4"):
            if draw.often(0.5) and (place := whole.find(marker)) > 0:
                whole[place + draw.randint(2, 12)] = draw.one(0, 1, 2, 3, 4, 5, 0x7F, 0xFF)

    def segments() -> None:
        kinds = (0xE0, 0xE1, 0xE2, 0xE8, 0xED, 0xEE, 0xFE, 0xDD, 0xDB)
        data = draw.one(
            b"", b"JFIF\0\1\2\0\0\1", b"Exif\0\0A", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"ICC_PROFILE\0\1\1x"
        )
        data = draw.one(
            data, b"MPF\0II*\0\x08\0\0\0\3\0", b"Adobe\0\x64", b"Photoshop 3.0\0" + b"8BIM\4\4\0\0\0\0\xff\xff"
        )
        segment = bytes([0xFF, draw.choice(kinds)]) + struct.pack(">H", len(data) + 2) + data
        whole[2:2] = segment * draw.one(1, 2, 100, 5000)

    def scans() -> None:
        first = whole.find(b"\xff\xda")
        last = whole.rfind(b"\xff\xda")
        whole[len(whole) - 2 : len(whole) - 2] = whole[draw.one(first, last) : len(whole) - 2] * draw.one(1, 10, 300)
        del whole[900_000:]

    draw.choice((size, components, segments, scans))()
    return whole


def _lying_gif(draw: Draw, whole: bytearray) -> bytearray:
    table = 13 + (3 << ((whole[10] & 7) + 1) if whole[10] & 0x80 else 0)

    def size() -> None:
        struct.pack_into("<H", whole, draw.one(6, 8), draw.choice(SIZES) & 0xFFFF)

    def frame() -> None:
        if (place := whole.find(b",", table)) > 0:
            struct.pack_into(
                "<H", whole, min(place + draw.one(1, 3, 5, 7), len(whole) - 2), draw.choice(SIZES) & 0xFFFF
            )

    def extensions() -> None:
        extension = draw.one(
            b"\x21\xfe\x01A\0", b"\x21\xf9\4\xff\0\0\xff\0", b"\x21\xff\x0bNETSCAPE2.0\3\1\0\0\0", b"\x21\1\0"
        )
        whole[table:table] = extension * draw.one(1, 2, 1000, 20_000)

    def blocks() -> None:
        whole[table:table] = b"\x21\xfe" + b"\1A" * draw.one(10, 40_000) + draw.one(b"\0", b"")

    def codes() -> None:
        if (place := whole.find(b",", table)) > 0 and place + 11 < len(whole):
            whole[place + 10] = draw.one(0, 1, 2, 8, 11, 12, 13, 255)

    draw.choice((size, frame, extensions, blocks, codes))()
    return whole


def _lying_bmp(draw: Draw, whole: bytearray) -> bytearray:
    fields: tuple[tuple[int, str], ...] = (
        (10, "<I"),
        (14, "<I"),
        (18, "<I"),
        (22, "<I"),
        (28, "<H"),
        (30, "<I"),
        (46, "<I"),
    )
    for place, kind in draw.sample(fields, draw.one(1, 1, 2)):
        chosen = draw.one(*SIZES, 3, 4, 12, 24, 40, 64, 108, 124, (-64) & 0xFFFFFFFF)
        struct.pack_into(kind, whole, place, chosen & (0xFFFF if kind == "<H" else 0xFFFFFFFF))
    return whole


def _lying_webp(draw: Draw, whole: bytearray) -> bytearray:
    if draw.often(0.4):
        struct.pack_into("<I", whole, draw.one(4, 16), draw.choice(SIZES))
    elif draw.often(0.5):
        whole[draw.randrange(20, min(len(whole), 40))] = draw.one(0, 0x2F, 0x7F, 0x80, 0xFF)
    else:
        canvas = struct.pack("<I", draw.one(0, 0x10, 0x02, 0x3E)) + draw.one(b"\xff", b"\0", b"\x3f") * 6
        whole[12:12] = b"VP8X" + struct.pack("<I", 10) + canvas
    return whole


LIES: tuple[tuple[bytes, Callable[[Draw, bytearray], bytearray]], ...] = (
    (b"\x89PNG", _lying_png),
    (b"\xff\xd8", _lying_jpeg),
    (b"GIF8", _lying_gif),
    (b"BM", _lying_bmp),
    (b"RIFF", _lying_webp),
)
