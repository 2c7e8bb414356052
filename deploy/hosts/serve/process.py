"""The signals and the end of the process; it imports nothing that takes time."""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from deploy.work_folders import make_work_folder, remove_in_use

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LATE_S = 5.0  # seconds beyond drain_s until the process ends, whatever still runs


class NotServed(Exception):
    """The archive cannot be served; the message is one line."""


class Process:
    """The end of this process: by a signal, or by itself."""

    def __init__(self) -> None:
        """Take the signals from now on: the first calls `stop`, and another one ends the process at once."""
        # Of this thread and those that it starts. One that compiles a model would answer late.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        # An archive is unpacked there. The next process removes the folder of one that was killed.
        self._work = make_work_folder("serve-", Path(tempfile.gettempdir()))
        self.folder = self._work.__enter__()  #: of this process's own files, removed at its end
        tempfile.tempdir = str(self.folder)
        self._ends = threading.Lock()
        #: Called at the first signal; until the servers run, it ends the process.
        self.stop: Callable[[], object] = self.end
        self.children: list[int] = []  #: ids of processes that end with this one
        self.drain_s = 0.0  #: seconds from the first signal to the end
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def _watch(self) -> None:
        signal.sigwait(SIGNALS)
        self.stop()
        signal.sigtimedwait(SIGNALS, self.drain_s + LATE_S)
        self.end(1)

    def end(self, code: int = 0) -> NoReturn:
        """End the process, although threads of an engine may still run."""
        self._ends.acquire()  # for ever
        for each in self.children:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        # A thread that loads the archive would report that its files are gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        remove_in_use(self.folder.parent)
        with suppress(OSError):  # a full disk, or a pipe that nothing reads
            sys.stdout.flush()
        os._exit(code)
