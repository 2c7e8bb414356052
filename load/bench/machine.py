"""The machine that is measured: its processor, and whether it is idle."""

import importlib.metadata
import os
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

# Instructions that decide how fast a model runs, as /proc/cpuinfo names them: x86-64's, then Arm's.
INSTRUCTIONS = (
    *("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)
# Variables that keep an engine from some of them.
CAPS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "CT2_FORCE_CPU_ISA")
# Share of the time of all cores, in %, that others may take; a machine at rest takes less. Threads of PyTorch and of
# OpenVINO wait for each other, so whatever takes one core for a moment stops them all.
IDLE_PERCENT = 10.0
# Seconds over which the load is averaged; psutil advises at least 0.1.
CHECK_S = 0.5


def processor(cpuinfo: str, cores: int, environment: Mapping[str, str]) -> str:
    """Describe a processor: its name, cores and instructions, and the caps on them.

    Args:
        cpuinfo: the text of /proc/cpuinfo.
        cores: number of cores that this process may use.
        environment: this process's.
    """
    lines = (line.split(":", 1) for line in cpuinfo.partition("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines}
    flags = set((fields.get("flags") or fields.get("Features", "")).split())
    found = " ".join(name for name in INSTRUCTIONS if name in flags) or "instructions unknown"
    caps = [f"{name}={environment[name]}" for name in CAPS if name in environment]
    return ", ".join([fields.get("model name", "processor"), f"{cores} cores", found, *caps])


def described(*packages: str) -> str:
    """Describe this machine and the versions of the packages that matter."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    return "; ".join([processor(text, len(os.sched_getaffinity(0)), os.environ), ", ".join(versions)])


def wait_idle(timeout_s: float) -> float:
    """Wait until the machine is idle, but no longer than `timeout_s`; return how busy it was last, in percent."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        busy_percent = psutil.cpu_percent(CHECK_S)
        if busy_percent <= IDLE_PERCENT or time.monotonic() > deadline_s:
            return busy_percent
