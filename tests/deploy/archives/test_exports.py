"""The cache of exports: an entry is made once, used only if complete, and made again if it is damaged."""

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from deploy.archives.exports import Exports

FILES = {"model.xml": b"<net/>", "deep/model.bin": b"0123456789"}


class Maker:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folder: Path) -> None:
        self.count += 1
        for name, content in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)


@pytest.fixture
def exports(tmp_path: Path) -> Exports:
    return Exports(tmp_path / "cache")


Target = Callable[[], Path]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return lambda: Path(tempfile.mkdtemp(dir=tmp_path))


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_entry_is_made_once_and_anew_where_it_is_cut_off(exports: Exports, target: Target) -> None:
    maker, folders = Maker(), [target() for _ in range(3)]
    for folder, count in zip(folders, (1, 1, 2), strict=True):
        if count == 2:
            os.truncate(exports.folder / "key" / "files" / "deep" / "model.bin", 4)
        exports.take("key", maker, folder)
        assert (content(folder), maker.count) == (FILES, count)


def test_takes_side_by_side_all_have_whole_files_and_leave_one_entry(exports: Exports, target: Target) -> None:
    barrier = Barrier(4)

    def make(folder: Path) -> None:
        barrier.wait(timeout=60)
        Maker()(folder)

    folders = [target() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda folder: exports.take("key", make, folder), folders))
    assert [content(folder) for folder in folders] == [FILES] * 4
    assert [path.name for path in exports.folder.iterdir()] == ["key"]
    late = Maker()
    exports.take("key", late, target())
    assert late.count == 0
