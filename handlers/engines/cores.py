"""How many cores this process may use: those it may run on, and what a container's limit leaves of their time.

A container's limit (Kubernetes' limits.cpu, systemd's CPUQuota) is a quota of the cgroup: the process still sees every
core of the machine, and is stopped for the rest of each period once it has used its share. An engine with a thread on
every core would use it up in a fraction of the period, and wait for the rest of it.
"""

import os
from pathlib import Path

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Count the cores that this process may use; whole ones, at least one. Cgroups are of version 2."""
    cores = float(len(os.sched_getaffinity(0)))
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    # 0::PATH. In a container the path may be the machine's, which is not mounted there: the root is the container's.
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = cgroups / path.strip("/")
    for each in [*(parent for parent in (folder, *folder.parents) if cgroups in parent.parents), cgroups]:
        limit = each / "cpu.max"
        # Microseconds of each period, or "max"; and the period.
        quota, period = limit.read_text(encoding="utf-8").split() if limit.is_file() else ("max", "")
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    return max(1, int(cores))
