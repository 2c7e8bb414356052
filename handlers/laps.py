"""What a worker's start takes, part by part: one line of the log tells where the seconds go.

start of the process -> Laps -> lap("imports"), lap("files"), ... -> "imports 1.91, files 0.24, ..."
"""

import os
import time
from pathlib import Path

# What the kernel says of this process, on Linux; the 22nd field is when it began, in clock ticks since the boot.
STAT = Path("/proc/self/stat")
BEGAN = 22


class Laps:
    """Seconds of one part after the other."""

    def __init__(self, began_s: float) -> None:
        """Begin with the first part.

        Args:
            began_s: when that was, by the clock of `now_s`.
        """
        self._last_s, self._parts = began_s, list[tuple[str, float]]()

    @classmethod
    def of_process(cls, stat: Path = STAT) -> "Laps":
        """Begin when this process did; now, where the kernel does not tell."""
        try:
            # The name of the program, in brackets, may hold spaces and brackets.
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            return cls(int(fields[BEGAN - 3]) / os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError, IndexError):
            return cls(now_s())

    def lap(self, name: str) -> None:
        """End a part, and begin the next one."""
        ended_s = now_s()
        self._parts.append((name, ended_s - self._last_s))
        self._last_s = ended_s

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._parts)


def now_s() -> float:
    """Seconds since the boot, those included that the machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
