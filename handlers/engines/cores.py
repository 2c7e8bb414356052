"""How many cores this process may use: those it may run on, and what a container's limit leaves of their time.

A container's limit (Kubernetes' limits.cpu, systemd's CPUQuota) is a quota of the cgroup: the process still sees every
core of the machine, and is stopped for the rest of each period once it has used its share. An engine with a thread on
every core would use it up in a fraction of the period, and wait for the rest of it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Count the cores that this process may use; whole ones, at least one.

    Args:
        cgroups: where the cgroups are mounted.
        own: which of them this process is in.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *(int(quota) for quota in _quotas(cgroups, own))]))


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """Cores that a quota amounts to, of each cgroup that has one: the process' own and those above it."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    # HIERARCHY:CONTROLLERS:PATH; version 2 has neither number nor controllers. In a container the path is that of its
    # namespace, or of the machine, which is not mounted there: what is mounted is the container's own then.
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            for folder in _upwards(cgroups, path):
                yield from _quota(*_words(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in _upwards(cgroups / "cpu", path):
                yield from _quota(*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us"))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    folder = root / path.strip("/")
    while folder != root and root in folder.parents:
        yield folder
        folder = folder.parent
    yield root


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []


def _quota(*words: str) -> Iterator[float]:
    """Divide time by period; none of "max" or -1, which are no limit."""
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]) > 0:
        yield int(words[0]) / int(words[1])
