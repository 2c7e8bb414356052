"""The counters of all processes of a server, each in its own file, so that they outlive their process."""

import json
import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# Name of a counter -> names of its labels, and their values -> its sum.
Counters = dict[str, tuple[list[str], dict[tuple[str, ...], float]]]
PROCESSES = "processes"  # the file in which the supervisor lists the processes that serve
WRITTEN_S = 0.5  # seconds between two writings


class Totals:
    """The counters of this process and of those before it in its file, beside those of others."""

    def __init__(self, own: Mapping[str, Any], file: Path | None) -> None:
        """`own` are live `Series` by name; a file is this process's alone, and None if there are no others."""
        self._own, self._file, self._before = own, file, _read(file)
        self._writing = threading.Lock()  # at the end, the main thread writes, too

    def start(self) -> None:
        """Write from now on, until the process ends."""
        if self._file is not None:
            threading.Thread(target=self._write_forever, name="totals", daemon=True).start()

    def write(self) -> None:
        if self._file is not None:
            with self._writing:
                counters = [(name, labels, [*samples.items()]) for name, (labels, samples) in self._of_file().items()]
                new = self._file.with_suffix(".new")
                new.write_text(json.dumps(counters), encoding="utf-8")
                new.replace(self._file)

    def read(self) -> Counters:
        """Add up the counters of all processes."""
        others = self._file.parent.glob("*.json") if self._file is not None else ()
        return _add(self._of_file(), *(_read(each) for each in others if each != self._file))

    def pids(self) -> list[int]:
        """Return the processes that serve, which share their files."""
        if self._file is not None:
            with suppress(OSError, ValueError):
                return [*json.loads((self._file.parent / PROCESSES).read_text(encoding="utf-8")).values()]
        return [os.getpid()]

    def _of_file(self) -> Counters:
        live = {name: ([*series.labels], dict(series.samples.copy())) for name, series in [*self._own.items()]}
        return _add(self._before, live)

    def _write_forever(self) -> None:
        pause = threading.Event()
        while not pause.wait(WRITTEN_S):
            try:
                self.write()
            except FileNotFoundError:
                return  # the supervisor has ended, and its folder is gone
            except OSError:
                pass  # a full disk


def _read(file: Path | None) -> Counters:
    if file is None or not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    return {name: (labels, {tuple(key): value for key, value in samples}) for name, labels, samples in content}


def _add(*parts: Counters) -> Counters:
    sums: Counters = {}
    for part in parts:
        for name, (labels, samples) in part.items():
            _, total = sums.setdefault(name, (labels, defaultdict(float)))
            for key, value in samples.items():
                total[key] += value
    return sums
