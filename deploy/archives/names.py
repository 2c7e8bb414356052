"""The names of a model's archives: NAME-VERSION.mar, and NAME.mar, which leads to the newest."""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from handlers.errors import InvalidConfig
from torchserve_client.archives import describe
from torchserve_client.errors import InvalidPayload


def lead(path: Path, archive: Path) -> None:
    """Make the name without a version lead to an archive: a second name of its file, or a copy where that fails."""
    if path.exists() and path.samefile(archive):
        return
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.hardlink_to(archive)
    except OSError:
        shutil.copyfile(archive, new)
    new.replace(path)


def check_names(name: str, *paths: Path) -> None:
    """Raise InvalidConfig if one of these files is the archive of another model: `a` 1-2 and `a-1` 2 have one name."""
    for path in paths:
        with suppress(InvalidPayload):
            if path.is_file() and (other := describe(path).name) != name:
                raise InvalidConfig(f"{name}: {path.name} is an archive of {other}: rename one of the models")


def prune(newest: Path, count: int, needed: Collection[str]) -> list[Path]:
    """Remove older versions beside NAME.mar, except the last `count` and those `needed`; return their paths."""
    own = []
    found = newest.parent.glob(f"{newest.stem}-*.mar")
    for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(InvalidPayload):
            own += [path] if path.is_file() and describe(path).name == newest.stem else []
    removed = [path for path in own[count:] if path.name not in needed and not path.samefile(newest)]
    for path in removed:
        path.unlink()
    return removed
