"""TorchServe's log files on the process' own output, where whoever runs containers looks.

logs/model_log.log, logs/ts_log.log, from now on -> Follow, a thread -> stdout
"""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

# Seconds between two looks, and most bytes of one: a worker that prints without end fills no memory.
LOOK_S, MOST_BYTES = 0.5, 1 << 20
# What the workers say, their tracebacks too, and the frontend's warnings (deploy/log4j2.xml).
FILES = ("model_log.log", "ts_log.log")


class Follow:
    """Copies whole lines that are added to files; what stood there before is not copied."""

    def __init__(self, paths: Iterable[Path], out: BinaryIO) -> None:
        """Remember where the files end; they need not exist yet."""
        self._ends = {path: path.stat().st_size if path.exists() else 0 for path in paths}
        self._out = out
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Copy what is there, and end."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._copy()

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self._copy()

    def _copy(self) -> None:
        for path, end in self._ends.items():
            try:
                # A file that is shorter than it was is a new one: the old one was put aside.
                begin = end if path.stat().st_size >= end else 0
                with path.open("rb") as file:
                    file.seek(begin)
                    found = file.read(MOST_BYTES)
            except OSError:
                continue
            lines = found if len(found) == MOST_BYTES else found[: found.rfind(b"\n") + 1]
            if lines:
                self._out.write(lines)
                self._out.flush()
            self._ends[path] = begin + len(lines)
