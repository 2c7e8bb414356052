"""Strip an image file of its metadata before Pillow reads it, count its parts, and read its orientation. Pure.

    JPEG  segments -> those that decoding needs, then the scans, which are few
    PNG   chunks   -> those that decoding needs
    GIF   blocks before the first frame, which are few
    Exif and XMP   -> orientation

Pillow reads metadata in Python, one step for each segment, chunk or block. 16 MiB of the smallest Exif segments, which
it joins one by one, keep the interpreter busy for 33 s, other segments for 9 s. libjpeg reads every pixel again for
each scan: a scan needs 75 bytes, and 22 ms if the image has 50,000,000 pixels.
"""

import re
import zlib
from dataclasses import dataclass
from struct import Struct, error, unpack_from

import numpy as np
from PIL.ExifTags import Base

from handlers.errors import CorruptInput, ImageTooLarge

# Segments of a JPEG before its first scan, and again behind it: an ICC profile has 255 at most, and an extended XMP,
# with a depth map for instance, one for each 64 KiB.
MOST_SEGMENTS = 1000
MOST_SCANS = 64  # scans of a JPEG: programs write 10 into a progressive one, and optimisers up to about 20
MOST_CHUNKS = 20_000  # chunks of a PNG: programs write data in pieces of 8 KiB or more
MOST_BLOCKS = 10_000  # blocks of a GIF before its first frame: XMP of a megabyte is 4000
TEXT_BYTES = 1 << 20  # bytes of a PNG's compressed text after unpacking; Pillow's own limit

# The first bytes of a file, by format.
JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
GIF = (b"GIF87a", b"GIF89a")
# The names at the beginning of a JPEG's segments of metadata.
EXIF = b"Exif\0\0"
XMP = b"http://ns.adobe.com/xap/1.0/\0"

# Markers of a JPEG's segments. Decoding needs no comments, and of the applications' only JFIF's and Adobe's segments,
# which define the colours.
APP1 = 0xE1
DROPPED_SEGMENTS = frozenset((*range(0xE1, 0xEE), 0xEF, 0xFE))
# Markers without a segment: restarts, the image's own start, a private one.
STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
SOS = 0xDA
EOI = 0xD9
SCAN = b"\xff\xda"
# Within data, 0 or a restart follows 0xFF; anything else is a marker.
NEXT_MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
# Chunks of a PNG.
TEXT_CHUNKS = frozenset((b"tEXt", b"zTXt", b"iTXt"))
NEEDED_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
CHUNK_OVERHEAD = 12  # bytes of a chunk's length, name and checksum
# The keywords of a PNG's texts with XMP (Adobe's specification, part 3) and with Exif in hexadecimal (ImageMagick).
PNG_XMP = b"XML:com.adobe.xmp"
PNG_EXIF = b"Raw profile type exif"
# The TIFF header of Exif (TIFF 6.0, section 2) -> numpy's sign of its byte order.
TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
# The types in which programs write an orientation, BYTE, SHORT and LONG -> bytes.
ORIENTATION_TYPES = {1: 1, 3: 2, 4: 4}
ORIENTATION_XMP = re.compile(rb"tiff:Orientation(?:=[\"']|>)([1-8])")

LENGTH = Struct(">H")
CHUNK_LENGTH = Struct(">I")


@dataclass(frozen=True, slots=True)
class StrippedFile:
    """A file without its metadata: the bytes that decoding needs."""

    body: bytes | bytearray
    exif: bytes = b""  # the Exif block, with or without its name
    xmp: bytes = b""  # the first XMP packet


def strip_metadata(body: bytes | bytearray) -> StrippedFile:
    """Strip a file of its metadata, and count its parts."""
    if body.startswith(JPEG):
        return _strip_jpeg(body)
    if body.startswith(PNG):
        return _strip_png(body)
    if body.startswith(GIF):
        _check_gif(body)
    return StrippedFile(body)


def read_orientation(exif: bytes, xmp: bytes) -> int:
    """Read the orientation, 1 to 8, from Exif or else from XMP; 1 if neither has it or the block is broken."""
    try:
        found = _read_exif_orientation(exif.removeprefix(EXIF))
    except (error, ValueError):  # a broken block
        found = None
    if found is None and (match := ORIENTATION_XMP.search(xmp)):
        found = int(match[1])
    return found if found is not None and 1 <= found <= 8 else 1


def _read_exif_orientation(tiff: bytes) -> int | None:
    """Find the orientation in the first directory; Pillow would need a step for each entry."""
    if (order := TIFF_ORDERS.get(tiff[:4])) is None:
        return None
    (at,) = unpack_from(f"{order}I", tiff, 4)
    (count,) = unpack_from(f"{order}H", tiff, at)
    entry = [("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", f"{order}u4"), ("value", "V4")]
    count = min(count, (len(tiff) - at - 2) // 12)
    entries = np.frombuffer(tiff, entry, count, at + 2)
    # The last entry counts, as in Pillow.
    for _, kind, number, value in entries[entries["tag"] == Base.Orientation][-1:].tolist():
        if number == 1 and kind in ORIENTATION_TYPES:
            return int.from_bytes(value[: ORIENTATION_TYPES[kind]], "little" if order == "<" else "big")
    return None


def _strip_jpeg(body: bytes | bytearray) -> StrippedFile:
    view = memoryview(body)
    kept: list[bytes | bytearray | memoryview] = [body[:2]]
    first = {EXIF: bytearray(), XMP: bytearray()}
    at = 2
    for _ in range(MOST_SEGMENTS):
        match = NEXT_MARKER.search(body, at)
        if match is None or match[1][0] == EOI:
            raise CorruptInput("The image's header is broken.")
        marker, start = match[1][0], match.end()
        at = start if marker in STANDALONE else _find_end(body, start)
        if marker == SOS:
            break
        for name in first if marker == APP1 else ():
            # A long Exif block is several segments.
            if body.startswith(name, start + LENGTH.size) and (
                not first[name] or (name == EXIF and len(first[EXIF]) < TEXT_BYTES)
            ):
                first[name] += view[start + LENGTH.size + len(name) : at]
        if marker not in DROPPED_SEGMENTS and marker not in STANDALONE:
            kept += [bytes((0xFF, marker)), view[start:at]]
    else:
        raise ImageTooLarge(f"The JPEG has more than {MOST_SEGMENTS} segments before its data.")
    end = _find_image_end(body, at)
    return StrippedFile(b"".join([*kept, SCAN, view[start:end]]), bytes(first[EXIF]), bytes(first[XMP]))


def _find_image_end(body: bytes | bytearray, at: int) -> int:
    """Return the end of a JPEG whose first scan's data is at `at`; bytes behind it, such as a film, are no part of it.

    Segments between scans are skipped: what they contain may look like scans, or like the end.
    """
    data = np.frombuffer(body, np.uint8)  # numpy needs a fifth of the time of a search, and not Python's lock
    markers, scans = data[at + 1 :], 1
    is_marker = (data[at:-1] == 0xFF) & (markers > 1) & (markers & 0xF8 != 0xD0) & (markers != 0xFF)
    places = at + np.flatnonzero(is_marker)
    for _ in range(MOST_SEGMENTS):
        index = int(np.searchsorted(places, at))
        if index == len(places):
            return len(body)
        start = int(places[index]) + 2
        marker = body[start - 1]
        if marker == EOI:
            return start
        scans += marker == SOS
        if scans > MOST_SCANS:
            raise ImageTooLarge(f"The JPEG has more than {MOST_SCANS} scans.")
        at = start if marker in STANDALONE else start + int.from_bytes(body[start : start + LENGTH.size], "big")
    raise ImageTooLarge(f"The JPEG has more than {MOST_SEGMENTS} segments between its scans.")


def _find_end(body: bytes | bytearray, start: int) -> int:
    """Return the end of the segment whose length is at `start`."""
    length = int.from_bytes(body[start : start + LENGTH.size], "big")
    if length < LENGTH.size or start + length > len(body):
        raise CorruptInput("The image's header is broken.")
    return start + length


def _strip_png(body: bytes | bytearray) -> StrippedFile:
    view = memoryview(body)
    kept: list[bytes | bytearray | memoryview] = [body[: len(PNG)]]
    exif = xmp = raw = b""
    at = len(PNG)
    for _ in range(MOST_CHUNKS):
        if at + CHUNK_OVERHEAD > len(body):
            # Pillow judges a truncated file.
            return StrippedFile(b"".join([*kept, view[at:]]), exif or _decode_hex(raw), xmp)
        (length,) = CHUNK_LENGTH.unpack_from(body, at)
        name, end = bytes(view[at + 4 : at + 8]), at + CHUNK_OVERHEAD + length
        if end > len(body) and name not in NEEDED_CHUNKS:
            raise CorruptInput("The PNG data is truncated or broken.")  # the rest would not look like a PNG
        if name in NEEDED_CHUNKS:
            kept.append(view[at:end])
        elif name == b"eXIf" and not exif:
            exif = bytes(view[at + 8 : end - 4])
        elif name in TEXT_CHUNKS and body.startswith((PNG_XMP + b"\0", PNG_EXIF + b"\0"), at + 8):
            keyword, _, text = bytes(view[at + 8 : end - 4]).partition(b"\0")
            text = _read_text(name, text)
            xmp, raw = (xmp or text, raw) if keyword == PNG_XMP else (xmp, raw or text)
        if name == b"IEND":
            return StrippedFile(b"".join(kept), exif or _decode_hex(raw), xmp)
        at = end
    raise ImageTooLarge(f"The PNG has more than {MOST_CHUNKS} chunks.")


def _read_text(name: bytes, text: bytes) -> bytes:
    """Return the text of a chunk without its keyword, decompressed; empty if it is broken or too long."""
    is_packed = name == b"zTXt" or (name == b"iTXt" and text[:1] == b"\1")
    if name == b"iTXt":
        # Before the text: a flag, the method, a language, the keyword in that language.
        text = text[2:].partition(b"\0")[2].partition(b"\0")[2]
    elif is_packed:
        text = text[1:]
    if not is_packed:
        return text
    packed = zlib.decompressobj()
    try:
        text = packed.decompress(text, TEXT_BYTES)
    except zlib.error:
        return b""
    return b"" if packed.unconsumed_tail else text


def _decode_hex(profile: bytes) -> bytes:
    """Decode ImageMagick's form of a profile: an empty line, its name, its length, hexadecimal digits."""
    try:
        return bytes.fromhex("".join(profile.decode("ascii").split("\n")[3:]))
    except ValueError:
        return b""


def _check_gif(body: bytes | bytearray) -> None:
    """Count the blocks before the first frame, and the bytes between them."""
    if len(body) < 13:
        raise CorruptInput("The image's header is broken.")
    at = 13 + (3 << ((body[10] & 7) + 1) if body[10] & 0x80 else 0)
    is_extension = False
    for _ in range(MOST_BLOCKS):
        if at >= len(body):
            return
        if is_extension:
            size = body[at]
            at += 1 + size
            is_extension = size > 0
        elif body[at] in b",;":
            return
        elif body[at] == ord("!"):
            # Its label, then its blocks.
            at += 2
            is_extension = True
        else:
            at += 1
    raise ImageTooLarge(f"The GIF has more than {MOST_BLOCKS} blocks before its first frame.")
