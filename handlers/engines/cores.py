"""The number of cores that this process may use: its affinity, limited by its cgroup's quota; and their kind.

A container's limit (Kubernetes' limits.cpu, systemd's CPUQuota) is a quota of the cgroup: the process still sees every
core of the machine, and is stopped for the rest of each period once it has used its share. An engine with a thread on
every core would use up the share in a fraction of the period.
"""

import os
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
    """Count the whole cores that this process may use, at least one. Only cgroups of version 2 are read."""
    cores = float(len(os.sched_getaffinity(0)))
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    # 0::PATH. In a container the path may be the machine's, which is not mounted there; the root is the container's.
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = cgroups / path.strip("/")
    for each in [*(parent for parent in (folder, *folder.parents) if cgroups in parent.parents), cgroups]:
        limit = each / "cpu.max"
        # Microseconds of each period, or "max"; and the period.
        quota, period = limit.read_text(encoding="utf-8").split() if limit.is_file() else ("max", "")
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    return max(1, int(cores))


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
