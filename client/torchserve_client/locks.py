"""Locks of files that end with their process; Windows has none."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from torchserve_client.errors import ClientError


def open_locked(path: Path, held: ClientError) -> IO[bytes]:
    """Open a file to append, and lock it; raise `held` if another process has the lock."""
    while True:
        file = path.open("a+b")
        try:
            lock(file, held)
            # Between opening and locking, an ending process may have replaced or removed the file.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def lock(file: IO[bytes] | IO[str], held: ClientError) -> None:
    """Lock a file until it is closed or its process ends."""
    if sys.platform == "win32":
        return
    import fcntl  # noqa: PLC0415

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise held from None
