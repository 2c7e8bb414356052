"""The names of a model's archives: NAME-VERSION.mar, and NAME.mar, which leads to the newest."""

import errno
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

from deploy.places import HOME
from deploy.work_folders import make_work_folder
from handlers.errors import InvalidConfig
from torchserve_client.archives import describe
from torchserve_client.errors import InvalidPayload


def place(new: Path, path: Path) -> None:
    """Move a new archive to its name. No rename replaces a folder, so each that another build puts there moves away."""
    for number in count():
        try:
            new.replace(path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not path.is_dir():
                raise
        with suppress(FileNotFoundError):
            path.rename(new.with_name(f"old-{number}"))


def lead(path: Path, archive: Path) -> None:
    """Make the name without a version lead to an archive: a second name of its file, or a copy where that fails."""
    if path.exists() and path.samefile(archive):
        return
    # In a folder of this call alone: over a name that another build made, the copy would write into its archive.
    with make_work_folder(".build-", path.parent) as work:
        new = work / path.name
        try:
            new.hardlink_to(archive)
        except OSError:
            shutil.copyfile(archive, new)
        new.replace(path)


def reject_other_models(name: str, *paths: Path) -> None:
    """Raise InvalidConfig if one of these files is the archive of another model: `a` 1-2 and `a-1` 2 have one name."""
    for path in paths:
        with suppress(InvalidPayload):
            if path.is_file() and (other := describe(path).name) != name:
                raise InvalidConfig(f"{name}: {path.name} is an archive of {other}: rename one of the models")


def prune(newest: Path, count: int, home: Path = HOME) -> list[Path]:
    """Remove older versions beside NAME.mar, except the last `count` and those that nodes serve; return their paths."""
    own, records = [], _read_records(home)
    for path in newest.parent.glob(f"{newest.stem}-*.mar"):
        with suppress(InvalidPayload, FileNotFoundError):  # another build may remove it meanwhile
            description, written_ns = describe(path), path.stat().st_mtime_ns
            own += [(written_ns, path, description.version)] if description.name == newest.stem else []

    def is_served(path: Path, version: str) -> bool:
        # As registered: NAME-VERSION.mar, or NAME.mar when it led to this version.
        return f'"{path.name}"' in records or all(f'"{each}"' in records for each in (newest.name, version))

    removed = []
    for _, path, version in sorted(own, reverse=True)[count:]:
        with suppress(FileNotFoundError):
            if not is_served(path, version) and not path.samefile(newest):
                path.unlink()
                removed.append(path)
    return removed


def _read_records(home: Path) -> str:
    """Return the records of the models that the nodes of this machine serve, or restore: deploy.nodes.run.restore."""
    # A node that starts writes restore.json, then removes its snapshots, and restore.json when it has others.
    patterns, nodes = ("restore.json", "logs/config/*.cfg", "restore.json"), [home, *home.glob(".nodes/*")]
    return "".join(_read_last(node, pattern) for pattern in patterns for node in nodes)


def _read_last(folder: Path, pattern: str) -> str:
    with suppress(FileNotFoundError):
        last = max(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns, default=None)
        return last.read_text(encoding="utf-8", errors="replace") if last else ""
    return ""
