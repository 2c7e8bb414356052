"""Compilations that ended a former process: a library's crash, which no exception reports.

before: an empty note beside the archive's measurements -> compile -> removed; after a crash it contains the signal
"""

import faulthandler
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def cache_dir(model_dir: Path) -> Path:
    """Return the folder of files that a later worker of the archive reads: CACHE_DIR, or one in the model's folder."""
    configured = os.environ.get("CACHE_DIR")
    return Path(configured) if configured else model_dir / ".cache"


def read_crash(note: Path) -> str:
    """Return the crash of a former process, such as `Floating point exception`; empty if there was none."""
    with suppress(OSError):
        first, *_ = note.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        return first.removeprefix("Fatal Python error: ")
    return ""


@contextmanager
def note_crash(note: Path) -> Iterator[None]:
    """Leave a note with the signal if one ends the process here; no effect in a folder that cannot be written to."""
    is_new = not note.parent.exists()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        file = note.open("ab")
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
            file = stack.enter_context(note.open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.callback(file.truncate, 0)
            has_ended = note.stat().st_size > 0
            file.write(b"1")
            file.flush()
        yield has_ended
