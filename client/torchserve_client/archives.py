"""An archive's name, version and settings; and its copy under another version.

TorchServe reads a model's name and version only from the archive's manifest, and refuses a registered version: to serve
an archive with other batch parameters beside the running one, it needs a copy with another manifest.

    model_store/resnet-152.mar, version 1.0 -> copy_as_version -> model_store/resnet-152@1.0-r2.mar, version 1.0-r2
"""

import hashlib
import json
import re
import shutil
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from torchserve_client.errors import InvalidPayload
from torchserve_client.files import copy_folder, find_files, replacing
from torchserve_client.payloads import Json

MANIFEST = "MAR-INF/MANIFEST.json"
_SUFFIX = re.compile(r"-r(\d+)$")
_BLOCK = 1 << 20  # bytes per read of a copy; a member of an archive may be larger than memory
# Characters of a name: letters, the marks that some scripts write parts of letters with, digits, and punctuation.
_CATEGORIES = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd"}
_PUNCTUATION = "._-+:@~"
_NAME_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Description:
    name: str
    version: str
    config: Json  # the parsed model-config.yaml; empty without one

    @property
    def is_continuous(self) -> bool:
        return bool(self.config.get("continuousBatching", False))

    @property
    def batch_parameters(self) -> dict[str, int]:
        """The valid ones of `batchSize` and `maxBatchDelay`: whole numbers above 0."""
        found = {name: self.config.get(name) for name in ("batchSize", "maxBatchDelay")}
        return {name: value for name, value in found.items() if type(value) is int and value > 0}


def describe(path: Path) -> Description:
    try:
        manifest = json.loads(_read(path, MANIFEST))["model"]
        name = manifest.get("configFile")
        config = yaml.safe_load(_read(path, name)) if name else None
        return Description(manifest["modelName"], str(manifest.get("modelVersion", "1.0")), config or {})
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, yaml.YAMLError) as error:
        why = "no such file" if isinstance(error, FileNotFoundError) and not path.exists() else type(error).__name__
        raise InvalidPayload(f"{path}: not a readable archive ({why})") from error


def check_name(name: str) -> None:
    """Raise InvalidPayload unless every API and the gateway can serve a model or version with this name."""
    others = [each for each in name if each not in _PUNCTUATION and unicodedata.category(each) not in _CATEGORIES]
    # TorchServe refuses archive files with two dots in a row.
    if others or not 1 <= len(name) <= _NAME_LENGTH or name == "." or ".." in name:
        allowed = f"1 to {_NAME_LENGTH} letters, digits and {' '.join(_PUNCTUATION)}, without two dots in a row"
        raise InvalidPayload(f"{name[:_NAME_LENGTH]!r} is not a valid name: use {allowed}")


def read_maker(path: Path) -> str | None:
    """Return the version of torchserve-batching that built an archive; None for any other file."""
    try:
        return json.loads(_read(path, "build.json")).get("made_with") or "an older version"
    except (OSError, KeyError, ValueError, AttributeError, zipfile.BadZipFile):
        return None


def read_fingerprint(path: Path) -> str | None:
    """Return the hash of everything that an archive was built from; None for another project's archive."""
    with suppress(OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile):
        return str(json.loads(_read(path, "build.json"))["fingerprint"])
    return None


def identify(path: Path) -> str:
    """Return a digest of an archive's content, without its version: equal for a copy of `copy_as_version`.

    It is empty if the archive cannot be read.
    """
    if (fingerprint := read_fingerprint(path)) is not None:
        return fingerprint
    with suppress(OSError, zipfile.BadZipFile):
        return _digest(path)
    return ""


def _digest(path: Path) -> str:
    if path.is_dir():
        sums = {str(each.relative_to(path)): zlib.crc32(each.read_bytes()) for each in find_files(path)}
    else:
        with zipfile.ZipFile(path) as archive:
            sums = {each.filename: each.CRC for each in archive.infolist() if not each.is_dir()}
    sums.pop(MANIFEST, None)
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def find_version(path: Path, version: str) -> Path:
    """Return NAME-VERSION.mar beside NAME.mar, which leads to the newest version, or else the archive itself."""
    own = path.with_name(f"{path.name.removesuffix('.mar')}-{version}.mar")
    return own if own.exists() else path


def original_version(version: str) -> str:
    """Return the version of the archive that a copy was made from."""
    return _SUFFIX.sub("", version)


def next_version(version: str, taken: Iterable[str]) -> str:
    """Return the first free version for a copy: the original's with -r2, -r3, ... appended."""
    numbers = [int(match[1]) for each in [version, *taken] if (match := _SUFFIX.search(each))]
    return f"{original_version(version)}-r{max(numbers, default=1) + 1}"


def name_copy(path: Path, version: str) -> Path:
    """Return the path of the copy of an archive, or of a copy, under another version."""
    stem = path.name.partition("@")[0].removesuffix(".mar")
    return path.with_name(f"{stem}@{version}{'.mar' if path.is_file() else ''}")


def is_copy(path: Path, version: str) -> bool:
    """Return whether an archive has the name that `name_copy` gives to a copy with this version."""
    return bool(_SUFFIX.search(version)) and path.name.removesuffix(".mar").endswith(f"@{version}")


def copy_as_version(path: Path, version: str) -> Path:
    """Copy an archive, file or folder, under another version beside the original, in one rename; return the copy."""
    copy = name_copy(path, version)
    with replacing(copy) as partial:  # its name is hidden: no server finds a partial archive
        if path.is_file():
            _copy_file(path, partial, version)
        else:
            copy_folder(path, partial)
            (partial / MANIFEST).write_bytes(_with_version((path / MANIFEST).read_bytes(), version))
    return copy


def _copy_file(path: Path, copy: Path, version: str) -> None:
    with zipfile.ZipFile(path) as original, zipfile.ZipFile(copy, "x") as archive:
        for entry in original.infolist():
            if entry.filename == MANIFEST:
                archive.writestr(entry, _with_version(original.read(entry), version))
            elif entry.is_dir():
                archive.writestr(entry, b"")
            else:
                with original.open(entry) as source, archive.open(entry, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, _BLOCK)


def _with_version(manifest: bytes, version: str) -> bytes:
    parsed = json.loads(manifest)
    parsed["model"]["modelVersion"] = version
    return json.dumps(parsed, indent=2).encode()


def _read(path: Path, member: str) -> bytes:
    if path.is_dir():
        return (path / member).read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(member)
