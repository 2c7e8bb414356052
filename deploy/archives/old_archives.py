"""The files of a stock archive, unpacked without running or unpickling anything: .mar, .tar.gz, or a folder.

archive -> its members, checked -> files in a folder -> OldArchive: manifest, model-config.yaml
"""

import json
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, Self

import yaml

from deploy.yaml_text import parse_yaml
from handlers.errors import InvalidConfig
from torchserve_client.payloads import Json

MANIFEST = "MAR-INF/MANIFEST.json"
SUFFIXES = (".mar", ".zip", ".tar.gz", ".tgz")
# Bounds of an archive: files, bytes of all files, and those of each and of all as a multiple of the compressed bytes
# (DEFLATE itself reaches 1032, and weights do not compress).
MOST_FILES = 10_000
MOST_BYTES = 32 * 2**30
MOST_INFLATION = 200
SMALL_BYTES = 2**20  # bytes that may be inflated by any factor, such as an empty vocabulary
MOST_SETTINGS_BYTES = 2**20  # bytes of a manifest or of settings


class Member(NamedTuple):
    """A file of an archive: its path as written there, its bytes when unpacked, and its source."""

    name: str
    size: int
    packed: int
    source: zipfile.ZipInfo | tarfile.TarInfo


class Header(tarfile.TarInfo):
    """A header of a member; tarfile reads those without a file, such as long names, into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.size > SMALL_BYTES and not found.isreg():
            raise InvalidConfig(f"{found.name!r} has a header of {found.size} bytes; at most {SMALL_BYTES} are read")
        return found


@dataclass(frozen=True, slots=True)
class OldArchive:
    folder: Path
    manifest: Json  # `model` of its MANIFEST.json: modelName, handler, serializedFile, modelFile
    config: Json  # its model-config.yaml; empty if it has none

    def path(self, key: str) -> Path | None:
        """Return the file that the manifest names under a key; None if there is no such file."""
        name = self.manifest.get(key)
        path = self.folder / PurePosixPath(str(name)).name
        return path if name and path.is_file() else None

    def read_text(self, name: str) -> str:
        """Read a file of code or settings, of a bounded size."""
        path = self.folder / name
        if path.stat().st_size > MOST_SETTINGS_BYTES:
            raise InvalidConfig(f"{name} has {path.stat().st_size} bytes; at most {MOST_SETTINGS_BYTES} are read")
        return path.read_text(encoding="utf-8", errors="replace")

    def read_json(self, name: str) -> Json:
        """Read a JSON object; empty if there is no such file; InvalidConfig if it is not a JSON object."""
        return _parse(name, self.read_text(name), json.loads) if (self.folder / name).is_file() else {}

    def files(self) -> list[str]:
        paths = (path.relative_to(self.folder) for path in sorted(self.folder.rglob("*")) if path.is_file())
        return [path.as_posix() for path in paths if path.parts[0] != "MAR-INF"]


def extract(path: Path, folder: Path) -> OldArchive:
    try:
        packed = path.stat().st_size
        if path.is_dir():
            _copy(path, folder)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _write(archive.open, _zip_members(archive), folder, packed)
        else:
            # Only gzip: other compressions need memory that the file chooses.
            with tarfile.open(path, "r:gz", tarinfo=Header) as tar:
                _write(tar.extractfile, _tar_members(tar, packed), folder, packed)
        return _read(folder)
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}: {error}") from None
    except tarfile.ReadError as error:
        kinds = f"expected {', '.join(SUFFIXES)} or a folder"
        raise InvalidConfig(f"{path}: not a valid archive ({error}): {kinds}") from None
    except Exception as error:
        raise InvalidConfig(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


def _read(folder: Path) -> OldArchive:
    if not (folder / MANIFEST).is_file():
        raise InvalidConfig(f"no {MANIFEST}: expected an archive that torch-model-archiver wrote")
    archive = OldArchive(folder, {}, {})
    manifest = archive.read_json(MANIFEST).get("model")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("handler"), str):
        raise InvalidConfig(f"{MANIFEST}: expected model.handler, the name of its handler")
    name = PurePosixPath(str(manifest.get("configFile", ""))).name
    config = _parse(name, archive.read_text(name), parse_yaml) if name and (folder / name).is_file() else {}
    return OldArchive(folder, manifest, config)


def _parse(name: str, text: str, parse: Callable[[str], object]) -> Json:
    try:
        found = parse(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InvalidConfig(f"{name}: {' '.join(str(error).split())}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidConfig(f"{name}: expected a mapping of names to values, received a {type(found).__name__}")
    return found


def _zip_members(archive: zipfile.ZipFile) -> Iterator[Member]:
    for each in archive.infolist():
        if stat.S_ISLNK(each.external_attr >> 16):
            raise InvalidConfig(f"{each.filename!r} is a link; expected files and folders")
        if each.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise InvalidConfig(f"{each.filename!r} has compression {each.compress_type}; expected DEFLATE or none")
        if not each.is_dir():
            yield Member(each.filename, each.file_size, each.compress_size, each)


def _tar_members(archive: tarfile.TarFile, packed: int) -> Iterator[Member]:
    for each in archive:
        if not (each.isfile() or each.isdir()):
            raise InvalidConfig(f"{each.name!r} is a link or a device; expected files and folders")
        if each.isfile():
            # torch-model-archiver puts everything into a folder of the model's name.
            name = each.name.removeprefix("./")
            yield Member(name.partition("/")[2] or name, each.size, packed, each)


def _write(open_member: Any, members: Iterator[Member], folder: Path, packed: int) -> None:
    total = 0
    for number, member in enumerate(members, 1):
        parts = PurePosixPath(member.name).parts
        if member.name.startswith("/") or ".." in parts or "\\" in member.name or ":" in member.name or not parts:
            raise InvalidConfig(f"{member.name!r} leaves the folder of the archive")
        total += member.size
        if number > MOST_FILES or total > MOST_BYTES:
            raise InvalidConfig(f"at most {MOST_FILES} files of {MOST_BYTES} bytes together are unpacked")
        for size, source, name in ((member.size, member.packed, repr(member.name)), (total, packed, "the archive")):
            if size > SMALL_BYTES and size > MOST_INFLATION * source:
                limit = f"more than {MOST_INFLATION}-fold"
                raise InvalidConfig(f"{name} grows from {source} to {size} bytes when it is unpacked, {limit}")
        if member.size > shutil.disk_usage(folder).free:
            raise InvalidConfig(f"{member.name!r} has {member.size} bytes, more than are free on the disk")
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_member(member.source) as source, path.open("xb") as target:
            _copy_bytes(source, target, member)


def _copy_bytes(source: IO[bytes], target: IO[bytes], member: Member) -> None:
    """Copy a member, whose stated size may be a lie."""
    left = member.size
    while block := source.read(2**20):
        left -= len(block)
        if left < 0:
            raise InvalidConfig(f"{member.name!r} has more bytes than the archive states")
        target.write(block)


def _copy(source: Path, folder: Path) -> None:
    """Copy a folder that contains an archive; links are rejected, since they may lead out of it."""
    for parent, folders, names in os.walk(source):
        if "__pycache__" in folders:  # a server that has the folder may be writing it
            folders.remove("__pycache__")
        for name in names:
            path = Path(parent) / name
            if path.is_symlink():
                raise InvalidConfig(f"{path.relative_to(source)} is a link; expected files and folders")
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
