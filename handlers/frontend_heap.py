"""The heap of TorchServe's frontend, which Java tells nobody but who reads its own counters.

    /tmp/hsperfdata_USER/PID, which every HotSpot JVM keeps in shared memory -> HeapFile -> used and most bytes

The worker is the frontend's child, so it knows the PID. What is read is the old generation as the last collection left
it: young objects come and go, and what fills the heap ends up there; bodies of a MiB and more are there from the
start. The layout is HotSpot's, version 2.0 (perfMemory.hpp); where it is another, or Java keeps none, there is no heap.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

FOLDERS = "hsperfdata_*"
MAGIC = 0xCAFEC0C0
VERSION = (2, 0)
# Byte order, version; bytes used, ..., offset of the first entry, how many there are.
HEAD = struct.Struct("<BBBBiiqii")
# Of an entry: its length, offset of the name, elements of a vector, type, ..., offset of the value.
ENTRY = struct.Struct("<iiiBBBBi")
LONG = struct.Struct("<q")
IS_LONG = ord("J")
LITTLE_ENDIAN = 1
# A header says how long the file is; no JVM makes it larger than this unless told.
FILE_BYTES = 1 << 20
USED, MOST = "sun.gc.generation.1.space.0.used", "sun.gc.generation.1.maxCapacity"


class Heap(NamedTuple):
    """The old generation, in bytes: how much of it was used after the last collection, and how much it may be."""

    used: int
    most: int


class HeapFile:
    """The counters of one JVM; found once, read as often as one likes at two reads of eight bytes."""

    def __init__(self, process: int, temporary: Path = Path("/tmp")) -> None:  # noqa: S108  # HotSpot's own choice
        """Find those of a process; no error where it has none."""
        self._path: Path | None = None
        self._offsets = (0, 0)
        for path in temporary.glob(f"{FOLDERS}/{process}"):
            try:
                # Anybody may write below /tmp.
                if path.stat().st_uid != os.getuid():
                    continue
                with path.open("rb") as file:
                    found = _offsets(file.read(FILE_BYTES))
            except (OSError, struct.error, ValueError):
                continue
            if USED in found and MOST in found:
                self._path, self._offsets = path, (found[USED], found[MOST])

    def read(self) -> Heap | None:
        """Read them; None where there are none, or the process has ended."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb", buffering=0) as file:
                used, most = (LONG.unpack(os.pread(file.fileno(), LONG.size, at))[0] for at in self._offsets)
        except (OSError, struct.error):
            return None
        return Heap(used, most)


def _offsets(content: bytes) -> dict[str, int]:
    """Name -> where its value lies, of every counter that is a number.

    Raises:
        struct.error, ValueError: it is no such file.
    """
    order, major, minor, _, _, _, _, at, count = HEAD.unpack_from(content, 4)
    if int.from_bytes(content[:4], "big") != MAGIC or order != LITTLE_ENDIAN or (major, minor) != VERSION:
        raise ValueError("no counters of HotSpot 2.0")
    found = {}
    for _ in range(count):
        length, name, elements, kind, _, _, _, value = ENTRY.unpack_from(content, at)
        if length <= 0:
            raise ValueError("an entry without a length")
        if kind == IS_LONG and elements == 0:
            found[content[at + name : content.index(0, at + name)].decode("ascii", "replace")] = at + value
        at += length
    return found
