"""Writes what a command makes, and finds out beforehand whether that can be."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from load.errors import CannotWrite


def check_outputs(paths: Sequence[Path | None], *, is_folder: bool = False) -> None:
    """Make sure before an hour of measuring that its results can be written.

    Args:
        paths: files to write; None is none. The first is of the runs.
        is_folder: whether that one is a folder.

    Raises:
        CannotWrite: a file cannot be made where it is wanted.
    """
    for number, path in enumerate(paths):
        if path is None:
            continue
        folder = path if is_folder and not number else path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror}") from error
        if folder is not path and path.is_dir():
            raise CannotWrite(f"cannot write {path}: it is a folder")


def write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from error
