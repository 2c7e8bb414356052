"""Java's counters, read out of files that are laid out as HotSpot lays them out."""

import os
import struct
from pathlib import Path

import pytest

from handlers.torchserve import Heap, HeapFile

USED, MOST = "sun.gc.generation.1.space.0.used", "sun.gc.generation.1.maxCapacity"
PROCESS = 4711


def entry(name: str, value: int) -> bytes:
    """A counter: its head of 20 bytes, its name, and at a multiple of eight its value."""
    text = name.encode() + b"\0"
    text += b"\0" * (-(20 + len(text)) % 8)
    head = struct.pack("<iiiBBBBi", 28 + len(text), 20, 0, ord("J"), 0, 1, 1, 20 + len(text))
    return head + text + struct.pack("<q", value)


def counters(values: dict[str, int], version: tuple[int, int] = (2, 0)) -> bytes:
    entries = b"".join(entry(name, value) for name, value in values.items())
    return (
        b"\xca\xfe\xc0\xc0"
        + struct.pack("<BBBBiiqii", 1, *version, 1, 32 + len(entries), 0, 0, 32, len(values))
        + entries
    )


def written(folder: Path, content: bytes) -> HeapFile:
    path = folder / "hsperfdata_somebody" / str(PROCESS)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return HeapFile(PROCESS, folder)


def test_heap_is_read_anew_each_time_until_the_process_ends(tmp_path: Path) -> None:
    subject = written(tmp_path, counters({"java.threads": 9, USED: 100, MOST: 2000}))
    assert subject.read() == Heap(100, 2000)
    written(tmp_path, counters({"java.threads": 9, USED: 150, MOST: 2000}))
    assert subject.read() == Heap(150, 2000)
    (tmp_path / "hsperfdata_somebody" / str(PROCESS)).unlink()
    assert subject.read() is None


WHOLE = counters({USED: 1, MOST: 2})


OTHERS = {
    "cut": WHOLE[:-40],
    "version": counters({USED: 1, MOST: 2}, version=(3, 0)),
    "length 0": WHOLE[:32] + struct.pack("<i", 0) + WHOLE[36:],
    "count": WHOLE[:28] + struct.pack("<i", 1 << 30) + WHOLE[32:],
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_file_of_another_layout_is_no_heap(tmp_path: Path, content: bytes) -> None:
    assert written(tmp_path, content).read() is None


def test_file_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert written(tmp_path, WHOLE).read() is None
