"""Waits, locks and pid files: one process of a kind, and its id for other processes."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deploy.run.errors import ServerError

ATTEMPTS = 50  # attempts to lock a pid file: a process that reads it locks it for a moment
RETRY_S = 0.02  # seconds between two attempts


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.1) -> bool:
    """Wait until a condition holds; return False if the timeout passes first."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


@contextmanager
def lock(file: Path) -> Iterator[None]:
    """Lock a file, and wait for a process that holds the lock."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


@contextmanager
def hold_pid_file(file: Path) -> Iterator[None]:
    """Lock a file that contains this process id; the kernel releases the lock when the process ends."""
    with file.open("a") as opened:
        for _ in range(ATTEMPTS):
            with suppress(BlockingIOError):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(RETRY_S)
        else:
            raise ServerError(f"already running, process {find_holder(file)}")
        opened.truncate(0)
        opened.write(str(os.getpid()))
        opened.flush()
        yield


def find_holder(file: Path) -> int | None:
    """Return the id of the process that holds a pid file; None if no process does."""
    with suppress(OSError, ValueError), file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(opened.read())
    return None
