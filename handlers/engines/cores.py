"""The number of cores that this process may use: its affinity, limited by its cgroup's quota; and their kind.

A container's limit (Kubernetes' limits.cpu, systemd's CPUQuota) is a quota of the cgroup: the process still sees every
core of the machine, and is stopped for the rest of each period once it has used its share. An engine with a thread on
every core would use up the share in a fraction of the period.
"""

import os
from math import inf
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
PROCESSORS = Path("/proc/cpuinfo")  # Linux's description of the processors
IDENTITY = ("vendor_id", "cpu family", "CPU implementer")  # its lines that name the vendor and the generation
FLAGS = ("flags", "Features")  # its lines that list instructions: x86's and Arm's
# Instructions that decide the arithmetic of fp32, bf16 or int8.
DECIDING = ("amx", "avx", "fma", "f16c", "asimd", "sve", "sme", "bf16", "i8mm", "fphp")
CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # settings of oneDNN, which OpenVINO and CTranslate2 obey


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Count the whole cores that this process may use, at least one."""
    cores = min(map(_read_quota, _list_folders(cgroups, own)))
    return max(1, int(min(cores, len(os.sched_getaffinity(0)))))


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


def read_processor(path: Path = PROCESSORS) -> str:
    """Name the kind of processor, by vendor, generation, deciding instructions and a cap on them; empty if unknown."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = {flag for name in FLAGS for flag in facts.get(name, "").split() if flag.startswith(DECIDING)}
    caps = [f"{name}={os.environ[name]}" for name in CAPS if os.environ.get(name)]
    return " ".join([*(facts[name] for name in IDENTITY if name in facts), *sorted(flags), *caps])
