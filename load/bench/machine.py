"""The machine: its processor, and whether it is idle."""

import importlib.metadata
import os
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

# Instructions that determine the speed of a model, by their names in /proc/cpuinfo: x86-64's, then Arm's.
X86 = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
INSTRUCTIONS = (*X86, "asimddp", "i8mm", "bf16", "sve")
# Variables that disable some of them in an engine.
CAPS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "CT2_FORCE_CPU_ISA")
# Most time of all cores, in %, that other processes may use; an idle machine uses less. Threads of PyTorch and OpenVINO
# wait for each other, so a process that uses one core for a moment stops all of them.
IDLE_PERCENT = 10.0
CHECK_S = 0.5  # seconds over which the load is averaged; psutil advises at least 0.1


def describe_processor(cpuinfo: str, cores: int, environment: Mapping[str, str]) -> str:
    """Describe a processor by /proc/cpuinfo: name, cores, instructions, and the variables that disable some."""
    lines = (line.split(":", 1) for line in cpuinfo.partition("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines}
    flags = (fields.get("flags") or fields.get("Features", "")).split()
    found = " ".join(name for name in INSTRUCTIONS if name in flags) or "instructions unknown"
    caps = [f"{name}={environment[name]}" for name in CAPS if name in environment]
    return ", ".join([fields.get("model name", "processor"), f"{cores} cores", found, *caps])


def describe(*packages: str) -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    return f"{describe_processor(text, len(os.sched_getaffinity(0)), os.environ)}; {versions}"


def is_idle(timeout_s: float) -> bool:
    """Wait until the machine is idle, at most `timeout_s`; return whether it is."""
    deadline_s = time.monotonic() + timeout_s
    while psutil.cpu_percent(CHECK_S) > IDLE_PERCENT:
        if time.monotonic() > deadline_s:
            return False
    return True
