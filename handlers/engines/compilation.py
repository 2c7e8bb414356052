"""Compilations that ended a former process: a library's crash, which no exception reports.

before: an empty note beside the archive's measurements -> compile -> removed; after a crash it contains the signal
"""

import faulthandler
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

READ, APPEND = os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND


def cache_dir(model_dir: Path) -> Path:
    """Return the folder of files that a later worker of the archive reads: CACHE_DIR, or one in the model's folder."""
    configured = os.environ.get("CACHE_DIR")
    return Path(configured) if configured else model_dir / ".cache"


def open_own(path: Path, flags: int) -> BinaryIO:
    """Open a file of this user or of root, in a folder where others may write: no link, and no pipe that blocks."""
    file = os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644), "ab" if flags == APPEND else "rb")
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid not in (0, os.geteuid()):
        file.close()
        raise PermissionError(f"{path} is not a plain file of this user")
    return file


def read_crash(note: Path) -> str:
    """Return the crash of a former process, such as `Floating point exception`; empty if there was none."""
    with suppress(OSError), open_own(note, READ) as file:
        first = file.readline(200).decode("utf-8", "replace").rstrip("\n")
        return first.removeprefix("Fatal Python error: ")
    return ""


@contextmanager
def note_crash(note: Path) -> Iterator[None]:
    """Leave a note with the signal if one ends the process here; no effect in a folder that cannot be written to."""
    is_new = not note.parent.exists()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        file = open_own(note, APPEND)
    except OSError:
        yield
        return
    was_enabled = faulthandler.is_enabled()
    faulthandler.enable(file, all_threads=False)
    try:
        yield
    finally:
        faulthandler.disable()
        if was_enabled:
            faulthandler.enable(sys.__stderr__ or 2)
        file.close()
        with suppress(OSError):
            if not note.stat().st_size:
                note.unlink()
                if is_new:
                    note.parent.rmdir()  # in a build, the folder would become a part of the archive


@contextmanager
def attempt(note: Path) -> Iterator[bool]:
    """Yield whether the last process in this block ended there, once; one that is inside now does not count."""
    with ExitStack() as stack:
        has_ended = False
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open_own(note, APPEND))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.callback(file.truncate, 0)
            has_ended = note.stat().st_size > 0
            file.write(b"1")
            file.flush()
        yield has_ended
