"""The shares of a machine that the processes of a server have."""

import os
from math import ceil, inf
from pathlib import Path

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN) -> list[int]:
    """Return the cores that this process may use, as many as its cgroup's quota allows."""
    # As handlers.engines.cores, which a host imports only from an archive.
    cores, quota = sorted(os.sched_getaffinity(0)), min(map(_read_quota, _list_folders(cgroups, own)))
    return cores[: max(1, int(min(quota, len(cores))))]


def _list_folders(cgroups: Path, own: Path) -> list[Path]:
    """List the folders of this process's cgroup and of those around it, of versions 1 and 2."""
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    found = [cgroups]
    # 0::PATH, or of version 1 4:cpu,cpuacct:PATH. In a container the path may be the machine's, which is not mounted
    # there; the root is the container's.
    for _, controllers, path in (line.split(":", 2) for line in lines):
        of_cpu = [cgroups / controllers, cgroups / "cpu"] if "cpu" in controllers.split(",") else []
        for root in of_cpu if controllers else [cgroups]:
            folder = root / path.strip("/")
            found += [root, *(each for each in (folder, *folder.parents) if root in each.parents)]
    return found


def _read_quota(folder: Path) -> float:
    """Return the cores of a cgroup's quota; infinity without one."""
    # Microseconds of each period, "max" or -1; and the period.
    texts = [folder / name for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    files = [folder / "cpu.max"] if (folder / "cpu.max").is_file() else texts
    if not all(file.is_file() for file in files):
        return inf
    quota, period = " ".join(file.read_text(encoding="utf-8") for file in files).split()
    return inf if quota in ("max", "-1") else int(quota) / int(period)


def choose_count(cores: int, python_s: float, cores_s: float) -> int:
    """Choose as many processes as keep all cores busy, if each runs Python on one core at a time."""
    return max(1, min(cores, ceil(cores * python_s / (python_s + cores_s) - 0.25)))


def own_cores(cores: list[int], number: int, count: int) -> list[int]:
    """Return the cores of a process's own, if there are two at least for each; none for all cores."""
    if count == 1 or len(cores) < 2 * count:
        return []
    place = (number - 1) % count
    return cores[place * len(cores) // count : (place + 1) * len(cores) // count]
