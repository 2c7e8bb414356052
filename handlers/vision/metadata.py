"""Strip an image file of its metadata before Pillow reads it, count its parts, and read its orientation. Pure.

    JPEG  segments -> those that decoding needs, then the scans, which are few
    PNG   chunks   -> those that decoding needs
    GIF   blocks before the first frame, which are few
    Exif and XMP   -> orientation

Pillow reads metadata in Python, a step for every segment, chunk or block: 16 MiB of the smallest Exif segments, which
it joins one by one, hold the interpreter for 33 s, of others for 9 s. libjpeg goes over every pixel again for each
scan: 75 bytes make one, and one of 50,000,000 pixels takes 22 ms.
"""

import re
import zlib
from dataclasses import dataclass
from struct import Struct, error, unpack_from

import numpy as np
from PIL.ExifTags import Base

from handlers.errors import CorruptInput, ImageTooLarge

# Segments of a JPEG before its first scan: an ICC profile takes 255 at most, and an extended XMP, which holds a depth
# map for instance, one for each 64 KiB.
MOST_SEGMENTS = 1000
# Scans of a JPEG: programs write 10 into a progressive one, and optimisers up to about 20.
MOST_SCANS = 64
# Chunks of a PNG: programs write data in pieces of 8 KiB or more.
MOST_CHUNKS = 20_000
# Blocks of a GIF before its first frame: XMP of a megabyte is 4000.
MOST_BLOCKS = 10_000
# Bytes that a compressed text of a PNG may unpack to; Pillow's own limit.
TEXT_BYTES = 1 << 20

JPEG, PNG, GIF = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
EXIF, XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"

# Segments that decoding does not need: those of applications but JFIF's and Adobe's, which say what the colours are;
# and comments.
APP1, DROPPED_SEGMENTS = 0xE1, frozenset((*range(0xE1, 0xEE), 0xEF, 0xFE))
# Markers without a segment: restarts, the image's own start, a private one.
STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
SOS, EOI = 0xDA, 0xD9
SCAN, END = b"\xff\xda", b"\xff\xd9"
# Of a segment or a scan's data: 0xFF is followed by 0 or a restart; anything else is a marker.
NEXT_MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
TEXT_CHUNKS = frozenset((b"tEXt", b"zTXt", b"iTXt"))
NEEDED_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
# The length, name and checksum of a chunk.
CHUNK_OVERHEAD = 12
# The keywords of a PNG's texts with XMP (Adobe's specification, part 3) and with Exif in hexadecimal (ImageMagick).
PNG_XMP, PNG_EXIF = b"XML:com.adobe.xmp", b"Raw profile type exif"
# The TIFF header of Exif and the entries of its directory (TIFF 6.0, section 2), by byte order.
TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
# The first type, BYTE, SHORT and LONG, in which programs write an orientation -> its bytes.
ORIENTATION_TYPES = {1: 1, 3: 2, 4: 4}
ORIENTATION_XMP = re.compile(rb"tiff:Orientation(?:=[\"']|>)([1-8])")

LENGTH, CHUNK_LENGTH = Struct(">H"), Struct(">I")


@dataclass(frozen=True, slots=True)
class Stripped:
    """A file without its metadata.

    Attributes:
        body: what decoding needs.
        exif: the Exif block, with or without its name; empty if there is none.
        xmp: the first XMP packet; empty if there is none.
    """

    body: bytes | bytearray
    exif: bytes = b""
    xmp: bytes = b""


def strip(body: bytes | bytearray) -> Stripped:
    """Strip a file of its metadata, and count its parts.

    Args:
        body: a file of any format; one that is no JPEG, PNG or GIF is left as it is.

    Raises:
        CorruptInput: its parts do not follow each other as they should.
        ImageTooLarge: it has more of them than an image needs.
    """
    if body.startswith(JPEG):
        return _jpeg(body)
    if body.startswith(PNG):
        return _png(body)
    if body.startswith(GIF):
        _check_gif(body)
    return Stripped(body)


def orientation(exif: bytes, xmp: bytes) -> int:
    """Read the orientation, 1 to 8, from Exif or else from XMP; 1 where neither has it, and for a broken block."""
    try:
        found = _exif_orientation(exif.removeprefix(EXIF))
    except (error, ValueError):  # a broken block
        found = None
    if found is None and (match := ORIENTATION_XMP.search(xmp)):
        found = int(match[1])
    return found if found is not None and 1 <= found <= 8 else 1


def _exif_orientation(tiff: bytes) -> int | None:
    """Find the orientation in the first directory, which may be anywhere; Pillow takes a step for each entry.

    Raises:
        struct.error, ValueError: the block is broken.
    """
    if (order := TIFF_ORDERS.get(tiff[:4])) is None:
        return None
    (at,) = unpack_from(f"{order}I", tiff, 4)
    (count,) = unpack_from(f"{order}H", tiff, at)
    entry = [("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", f"{order}u4"), ("value", "V4")]
    count = min(count, (len(tiff) - at - 2) // 12)
    entries = np.frombuffer(tiff, entry, count, at + 2)
    # Of several, the last counts, as in Pillow.
    for _, kind, number, value in entries[entries["tag"] == Base.Orientation][-1:].tolist():
        if number == 1 and kind in ORIENTATION_TYPES:
            return int.from_bytes(value[: ORIENTATION_TYPES[kind]], "little" if order == "<" else "big")
    return None


def _jpeg(body: bytes | bytearray) -> Stripped:
    view = memoryview(body)
    kept: list[bytes | bytearray | memoryview] = [body[:2]]
    first = {EXIF: bytearray(), XMP: bytearray()}
    at = 2
    for _ in range(MOST_SEGMENTS):
        match = NEXT_MARKER.search(body, at)
        if match is None or match[1][0] == EOI:
            raise CorruptInput("The image's header is broken.")
        marker, start = match[1][0], match.end()
        at = start if marker in STANDALONE else _end(body, start)
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
    # What follows the image's end, a film for instance, may look like scans. It is cut off, so that no scan escapes.
    end = body.find(END, at) + len(END)
    end = end if end >= len(END) else len(body)
    if body.count(SCAN, at, end) >= MOST_SCANS:
        raise ImageTooLarge(f"The JPEG has more than {MOST_SCANS} scans.")
    return Stripped(b"".join([*kept, SCAN, view[start:end]]), bytes(first[EXIF]), bytes(first[XMP]))


def _end(body: bytes | bytearray, start: int) -> int:
    """Return the end of the segment whose length stands at `start`."""
    length = int.from_bytes(body[start : start + LENGTH.size], "big")
    if length < LENGTH.size or start + length > len(body):
        raise CorruptInput("The image's header is broken.")
    return start + length


def _png(body: bytes | bytearray) -> Stripped:
    view = memoryview(body)
    kept: list[bytes | bytearray | memoryview] = [body[: len(PNG)]]
    exif = xmp = raw = b""
    at = len(PNG)
    for _ in range(MOST_CHUNKS):
        if at + CHUNK_OVERHEAD > len(body):
            # Pillow judges a file that is cut off.
            return Stripped(b"".join([*kept, view[at:]]), exif or _from_hex(raw), xmp)
        (length,) = CHUNK_LENGTH.unpack_from(body, at)
        name, end = bytes(view[at + 4 : at + 8]), at + CHUNK_OVERHEAD + length
        if end > len(body) and name not in NEEDED_CHUNKS:
            # Without it the rest would look like no PNG at all.
            raise CorruptInput("The PNG data is truncated or broken.")
        if name in NEEDED_CHUNKS:
            kept.append(view[at:end])
        elif name == b"eXIf" and not exif:
            exif = bytes(view[at + 8 : end - 4])
        elif name in TEXT_CHUNKS and body.startswith((PNG_XMP + b"\0", PNG_EXIF + b"\0"), at + 8):
            keyword, _, text = bytes(view[at + 8 : end - 4]).partition(b"\0")
            text = _text(name, text)
            xmp, raw = (xmp or text, raw) if keyword == PNG_XMP else (xmp, raw or text)
        if name == b"IEND":
            return Stripped(b"".join(kept), exif or _from_hex(raw), xmp)
        at = end
    raise ImageTooLarge(f"The PNG has more than {MOST_CHUNKS} chunks.")


def _text(name: bytes, text: bytes) -> bytes:
    """Return the text of a chunk without its keyword, decompressed; empty if it is broken or too long."""
    is_packed = name == b"zTXt" or (name == b"iTXt" and text[:1] == b"\1")
    if name == b"iTXt":
        # A flag, the method, a language, the keyword in that language.
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


def _from_hex(profile: bytes) -> bytes:
    """Decode ImageMagick's form of a profile: an empty line, its name, its length, and hexadecimal digits."""
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
