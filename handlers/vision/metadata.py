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
from dataclasses import dataclass
from struct import Struct

from PIL import Image
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
# Bytes of Exif that Pillow reads for the orientation: 340 entries; cameras write some 20.
EXIF_BYTES = 4096

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
NEEDED_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
# The length, name and checksum of a chunk.
CHUNK_OVERHEAD = 12
ORIENTATION_XMP = re.compile(rb"tiff:Orientation(?:=[\"']|>)([1-8])")

LENGTH, CHUNK_LENGTH = Struct(">H"), Struct(">I")


@dataclass(frozen=True, slots=True)
class Stripped:
    """A file without its metadata.

    Attributes:
        body: what decoding needs.
        exif: the first Exif block, with or without its name; empty where there is none.
        xmp: the first XMP packet; likewise.
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
    directory = Image.Exif()
    try:
        directory.load(exif[:EXIF_BYTES])
        found = directory.get(Base.Orientation)
    except Exception:  # Pillow raises anything for a broken block
        found = None
    if found is None and (match := ORIENTATION_XMP.search(xmp)):
        found = int(match[1])
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _jpeg(body: bytes | bytearray) -> Stripped:
    view = memoryview(body)
    kept: list[bytes | bytearray | memoryview] = [body[:2]]
    first: dict[bytes, bytes] = {EXIF: b"", XMP: b""}
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
            if not first[name] and body.startswith(name, start + LENGTH.size):
                first[name] = bytes(view[start + LENGTH.size : at])
        if marker not in DROPPED_SEGMENTS and marker not in STANDALONE:
            kept += [bytes((0xFF, marker)), view[start:at]]
    else:
        raise ImageTooLarge(f"The JPEG has more than {MOST_SEGMENTS} segments before its data.")
    # What follows the image's end, a film for instance, may look like scans. It is cut off, so that no scan escapes.
    end = body.find(END, at) + len(END)
    end = end if end >= len(END) else len(body)
    if body.count(SCAN, at, end) >= MOST_SCANS:
        raise ImageTooLarge(f"The JPEG has more than {MOST_SCANS} scans.")
    return Stripped(b"".join([*kept, SCAN, view[start:end]]), first[EXIF], first[XMP])


def _end(body: bytes | bytearray, start: int) -> int:
    """Return the end of the segment whose length stands at `start`."""
    length = int.from_bytes(body[start : start + LENGTH.size], "big")
    if length < LENGTH.size or start + length > len(body):
        raise CorruptInput("The image's header is broken.")
    return start + length


def _png(body: bytes | bytearray) -> Stripped:
    view = memoryview(body)
    kept: list[bytes | bytearray | memoryview] = [body[: len(PNG)]]
    exif = xmp = b""
    at = len(PNG)
    for _ in range(MOST_CHUNKS):
        if at + CHUNK_OVERHEAD > len(body):
            # Pillow judges a file that is cut off.
            return Stripped(b"".join([*kept, view[at:]]), exif, xmp)
        (length,) = CHUNK_LENGTH.unpack_from(body, at)
        name, end = bytes(view[at + 4 : at + 8]), at + CHUNK_OVERHEAD + length
        if end > len(body) and name not in NEEDED_CHUNKS:
            # Without it the rest would look like no PNG at all.
            raise CorruptInput("The PNG data is truncated or broken.")
        if name in NEEDED_CHUNKS:
            kept.append(view[at:end])
        elif name == b"eXIf" and not exif:
            exif = bytes(view[at + 8 : end - 4])
        elif name == b"iTXt" and not xmp and body.startswith(b"XML:com.adobe.xmp\0", at + 8):
            xmp = bytes(view[at + 8 : end - 4])
        if name == b"IEND":
            return Stripped(b"".join(kept), exif, xmp)
        at = end
    raise ImageTooLarge(f"The PNG has more than {MOST_CHUNKS} chunks.")


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
