"""The cache of exports: an entry is made once, taken whole, and made anew where it is damaged."""

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from deploy.build.exports import Exports

FILES = {"model.xml": b"<net/>", "deep/model.bin": b"0123456789"}


class Maker:
    """Makes the files of an entry and counts how often."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = files or FILES
        self.count = 0

    def __call__(self, folder: Path) -> None:
        self.count += 1
        for name, content in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)


@pytest.fixture
def exports(tmp_path: Path) -> Exports:
    return Exports(tmp_path / "cache")


Target = Callable[[], Path]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """Make a new empty folder each time."""
    return lambda: Path(tempfile.mkdtemp(dir=tmp_path))


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def keys(exports: Exports) -> list[str]:
    return sorted(path.name for path in exports.folder.iterdir())


def test_take_a_second_time_makes_nothing_and_links_the_same_files(exports: Exports, target: Target) -> None:
    maker, folders = Maker(), [target(), target()]
    for folder in folders:
        exports.take("key", maker, folder)
        assert content(folder) == FILES
    assert maker.count == 1
    assert (folders[0] / "deep/model.bin").samefile(folders[1] / "deep/model.bin")
    other = target()
    exports.take("other", Maker({"model.pt": b"other"}), other)
    assert content(other) == {"model.pt": b"other"}
    assert keys(exports) == ["key", "other"]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda entry: os.truncate(entry / "files" / "deep" / "model.bin", 4),
    "flipped": lambda entry: (entry / "files" / "deep" / "model.bin").write_bytes(b"0123456780"),
    "lost": lambda entry: (entry / "files" / "model.xml").unlink(),
    "added": lambda entry: (entry / "files" / "more").touch(),
    "sums": lambda entry: (entry / "sums.json").write_bytes(b"\xff{"),
}


def test_takes_side_by_side_all_have_whole_files_and_leave_one_entry(exports: Exports, target: Target) -> None:
    barrier = Barrier(4)

    def make(folder: Path) -> None:
        barrier.wait(timeout=60)
        Maker()(folder)

    folders = [target() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda folder: exports.take("key", make, folder), folders))
    assert [content(folder) for folder in folders] == [FILES] * 4
    assert keys(exports) == ["key"]
    late = Maker()
    exports.take("key", late, target())
    assert late.count == 0
