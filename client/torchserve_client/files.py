"""Files and folders that replace others in one step, and a folder's files without compiled Python."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMPILED = "__pycache__"  # Python's folder


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a hidden name beside a path, free and of this call alone; what has it at the end replaces the path."""
    # Not a process id: threads share it, and so do containers that share a folder.
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield new
        new.replace(path)
    finally:
        remove(new)


def find_files(folder: Path) -> list[Path]:
    """List the files of a folder at any depth, without compiled Python."""
    return [each for each in sorted(folder.rglob("*")) if COMPILED not in each.parts and each.is_file()]


def copy_folder(source: Path, target: Path, *left_out: str) -> None:
    """Copy a folder without compiled Python, which a worker that starts writes and renames, and other patterns."""
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(COMPILED, *left_out))
    except shutil.Error as error:
        _, _, reason = error.args[0][0]
        raise OSError(reason) from None  # the first of a list


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
