"""Waits, locks, signals and pid files: one process of a kind, and its id for other processes."""

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from deploy.nodes.run import ServerError

ATTEMPTS = 50  # attempts to lock a pid file: a process that reads it locks it for a moment
RETRY_S = 0.02  # seconds between two attempts
# A program begins when its parent, which lives, has written a line; without the parent, the line never comes.
GATE = '[ "$PPID" = "$0" ] && read -r _ && exec "$@" </dev/null'
OWNED = ("setpriv", "--pdeathsig", "TERM")  # the signal that a process gets when the thread that started it ends


class Ending:
    """The end of this process by SIGTERM or Ctrl-C: the first signal interrupts a start, and no other one raises."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self._is_interruptible = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let the first signal raise KeyboardInterrupt, once, also if it came before."""
        self._is_interruptible = True
        try:
            if self.is_asked.is_set():
                self._interrupt()
            yield
        finally:
            self._is_interruptible = False

    def _note(self, *_: object) -> None:
        is_first = not self.is_asked.is_set()
        self.is_asked.set()
        if is_first and self._is_interruptible:
            self._interrupt()

    def _interrupt(self) -> None:
        self._is_interruptible = False
        raise KeyboardInterrupt


def spawn(
    command: Sequence[str], note: Callable[[int], object], *, is_owned: bool = False, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a program after `note` has written its id, or not at all; an owned one ends with this thread."""
    gate, opener = os.pipe()
    words = [*(OWNED if is_owned else ()), "sh", "-c", GATE, str(os.getpid()), *command]
    try:
        # Ctrl-C in the terminal must not reach it. Netty writes large parts of forms into files, whose mode follows the
        # umask (CVE-2021-21290).
        child = subprocess.Popen(
            words, stdin=gate, stderr=subprocess.STDOUT, umask=0o077, start_new_session=True, **options
        )
        note(child.pid)
        with suppress(BrokenPipeError):
            os.write(opener, b"\n")
        return child
    finally:
        os.close(gate)
        os.close(opener)


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.1) -> bool:
    """Wait until a condition holds; return False if the timeout passes first."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


@contextmanager
def lock(file: Path, *, is_awaited: bool = True) -> Iterator[None]:
    """Lock a file, and wait for a process that holds the lock, or go on without."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as opened:
        with suppress(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if is_awaited else fcntl.LOCK_NB))
        yield


@contextmanager
def hold_pid_file(file: Path) -> Iterator[None]:
    """Lock a file that contains this process id; the kernel releases the lock when the process ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
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
