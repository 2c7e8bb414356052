"""The cache of exports: folders of files that took long to make, by the fingerprint of their inputs.

.exports/FINGERPRINT/files/      model.xml, model.bin, model.pt, ...
.exports/FINGERPRINT/sums.json   path -> size and CRC-32: a truncated or altered entry is made again
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.work_folders import make_work_folder

# The most bytes of all entries; the longest unused one is removed first. ResNet-152 for both engines takes 0.48e9.
SIZE_BYTES = 4 * 10**9
ENTRY = re.compile("[0-9a-f]{64}")  # a fingerprint


@dataclass(frozen=True, slots=True)
class Exports:
    folder: Path  # the folder of its entries; made with the first one

    def take(self, key: str, make: Callable[[Path], None], target: Path) -> None:
        """Put an entry's files, which may be hard links, into an empty folder; make a missing or broken entry first."""
        entry = self.folder / key
        try:
            if names := _list_sound_files(entry):
                link_files(entry / "files", target, names)
                os.utime(entry)
                return
        except OSError:
            shutil.rmtree(target)  # another build removed it meanwhile
            target.mkdir()
        self.folder.mkdir(parents=True, exist_ok=True)
        with make_work_folder(".new-", self.folder) as work:
            new = work / "entry"
            (new / "files").mkdir(parents=True)
            make(new / "files")
            sums = _sums(new / "files")
            (new / "sums.json").write_text(json.dumps(sums))
            link_files(new / "files", target, [*sums])
            self._publish(new, entry)
        self._remove_unused(entry)

    @staticmethod
    def _publish(new: Path, entry: Path) -> None:
        try:
            if entry.exists():
                entry.rename(new.with_name("old"))
            new.rename(entry)
        except OSError:
            return  # another build published equal files a moment ago

    def _remove_unused(self, newest: Path) -> None:
        """Remove the entries unused for longest until the rest fits."""
        entries: list[tuple[float, int, Path]] = []
        for path in (sums.parent for sums in self.folder.glob("*/sums.json")):
            if not ENTRY.fullmatch(path.name):
                continue  # CACHE_DIR may be a folder with other contents
            with suppress(OSError):  # another build may remove it meanwhile
                size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                entries.append((path.stat().st_mtime, size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= SIZE_BYTES:
                return
            if path != newest:
                shutil.rmtree(path, ignore_errors=True)
                total -= size


def link_files(source: Path, target: Path, names: Sequence[str]) -> None:
    """Put files of a folder into another, as hard links if the file system has them; OSError if one is missing."""
    for name in names:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, place)
        except OSError:
            shutil.copyfile(source / name, place)


def _list_sound_files(entry: Path) -> list[str]:
    """List an entry's files; an entry that is missing or has changed has none."""
    try:
        sums: dict[str, list[int]] = json.loads((entry / "sums.json").read_text())
        return [*sums] if sums == _sums(entry / "files") else []
    except (OSError, ValueError):
        return []


def _sums(folder: Path) -> dict[str, list[int]]:
    return {
        path.relative_to(folder).as_posix(): [path.stat().st_size, _crc(path)]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
