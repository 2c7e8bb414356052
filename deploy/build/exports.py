"""The cache of exports: folders of files that took long to make, under the fingerprint of what they were made from.

    .exports/FINGERPRINT/files/      model.xml, model.bin, model.pt, ...
    .exports/FINGERPRINT/sums.json   path -> size and CRC-32: a truncated or altered entry is made anew

An entry is made in a hidden folder of its own and then renamed, so builds side by side never see half of one. Files are
taken out of it as hard links: an archive's folder of weights costs no copy.
"""

import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Most bytes of all entries; those unused for longest go first. ResNet-152 for both engines takes 0.48e9.
SIZE_BYTES = 4 * 10**9
# Seconds after which a hidden folder is one that a killed build left; the longest export seen took 75 s.
ABANDONED_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Exports:
    """A cache of exports in a folder.

    Attributes:
        folder: where its entries lie; made when the first one is.
    """

    folder: Path

    def take(self, key: str, make: Callable[[Path], None], target: Path) -> None:
        """Put the files of an entry into a folder, made first where there is no sound entry.

        Args:
            key: the fingerprint of what the files are made from.
            make: writes them into the empty folder that it is given.
            target: an empty folder; its files may be hard links, so they are to be read and not written.
        """
        entry = self.folder / key
        try:
            if names := _sound(entry):
                link_files(entry / "files", target, names)
                os.utime(entry)
                return
        except OSError:
            # Another build removed it meanwhile.
            shutil.rmtree(target)
            target.mkdir()
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=self.folder) as work:
            new = Path(work) / "entry"
            (new / "files").mkdir(parents=True)
            make(new / "files")
            sums = _sums(new / "files")
            (new / "sums.json").write_text(json.dumps(sums))
            link_files(new / "files", target, [*sums])
            self._publish(new, entry)
        self._tidy(entry)

    @staticmethod
    def _publish(new: Path, entry: Path) -> None:
        try:
            if entry.exists():
                entry.rename(new.with_name("old"))
            new.rename(entry)
        except OSError:
            # Another build published the same files a moment ago: they are as good.
            return

    def _tidy(self, newest: Path) -> None:
        """Remove what killed builds left, and the entries unused for longest until the rest fits."""
        entries: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            try:
                changed_s = path.stat().st_mtime
                if not path.name.startswith("."):
                    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                    entries.append((changed_s, size, path))
                elif time.time() - changed_s > ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)
            except OSError:
                continue
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= SIZE_BYTES:
                return
            if path != newest:
                shutil.rmtree(path, ignore_errors=True)
                total -= size


def link_files(source: Path, target: Path, names: Sequence[str]) -> None:
    """Give a folder files of another one, as hard links where the file system has them.

    Raises:
        OSError: one of them is not there.
    """
    for name in names:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, place)
        except OSError:
            shutil.copyfile(source / name, place)


def _sound(entry: Path) -> list[str]:
    """The names of an entry's files; none where there is no entry, or not the one that was made."""
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
