"""Folders for the work of one process, which a later one removes if that process was killed.

PREFIXxxxx/.torchserve-batching   the mark of a folder that this module made: others of such a name are their owner's
PREFIXxxxx/work/                  the folder that the caller gets
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = ".torchserve-batching"
WRITING_S = 5.0  # seconds that an archive may take to unpack
QUIET_S = 0.1  # seconds without a new file until nothing writes there


@contextmanager
def make_work_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Make a folder that is removed at the end, and remove those of the prefix whose processes have ended."""
    remove_ended(prefix, parent)
    # It gets the prefix when it is locked. A file system without locks of folders keeps those of killed processes.
    new = Path(tempfile.mkdtemp(prefix=f".new{prefix}", dir=parent))
    handle = os.open(new, os.O_RDONLY)
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)
    (new / "work").mkdir()
    (new / MARK).write_text(prefix)
    folder = new.rename(parent / new.name.removeprefix(".new"))
    try:
        yield folder / "work"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_in_use(folder: Path) -> None:
    """Remove the folder of this process, although its other threads may write there for some seconds more."""
    now = time.monotonic()
    end, quiet = now + WRITING_S, now + QUIET_S
    while now < min(end, quiet):
        if (folder / "work").exists():
            shutil.rmtree(folder / "work", ignore_errors=True)
            quiet = time.monotonic() + QUIET_S
        time.sleep(0.01)
        now = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)


def remove_ended(prefix: str, parent: Path) -> None:
    """Remove the folders of the prefix whose processes have ended."""
    for path in (*parent.glob(f"{prefix}*"), *parent.glob(f".new{prefix}*")):
        # Its process holds the lock until it ends in any way. Other users' folders stay.
        with suppress(OSError), _lock(path):
            if stat.S_ISREG((path / MARK).lstat().st_mode) and (path / MARK).read_bytes() == prefix.encode():
                shutil.rmtree(path)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait for others that change a folder; none waits on a file system without locks of folders."""
    handle = os.open(folder, os.O_RDONLY)
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock a folder, or raise OSError if its process lives."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
