"""The shares of a machine that the processes of a server have."""

import os
from math import ceil
from pathlib import Path

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN) -> list[int]:
    """Return the cores that this process may use, as many as its cgroup's quota allows (version 2)."""
    cores = sorted(os.sched_getaffinity(0))
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    for folder in {cgroups, *(cgroups / part for part in (Path(path), *Path(path).parents))}:
        limit = folder / "cpu.max"
        quota, period = limit.read_text(encoding="utf-8").split() if limit.is_file() else ("max", "")
        if quota != "max":
            cores = cores[: max(1, int(quota) // int(period))]
    return cores


def choose_count(cores: int, python_s: float, cores_s: float) -> int:
    """Choose as many processes as keep all cores busy, if each runs Python on one core at a time."""
    return max(1, min(cores, ceil(cores * python_s / (python_s + cores_s) - 0.25)))


def own_cores(cores: list[int], number: int, count: int) -> list[int]:
    """Return the cores of a process's own, if there are two at least for each; none for all cores."""
    if count == 1 or len(cores) < 2 * count:
        return []
    place = (number - 1) % count
    return cores[place * len(cores) // count : (place + 1) * len(cores) // count]
