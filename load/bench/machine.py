"""Describes the machine that the numbers were measured on, and waits until it is idle."""

import importlib.metadata
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

# Flags of /proc/cpuinfo for instructions on bf16 matrices; AMX is the faster by far.
AMX_FLAGS = frozenset({"amx_bf16", "amx_tile"})
BF16_FLAGS = AMX_FLAGS | {"avx512_bf16"}


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says when the machine counts as idle.

    Threads of PyTorch and of OpenVINO wait for each other, so whatever takes one core for a moment stops them all.
    """

    # Share of the time of all cores, in %, that others may take; chosen, more than a machine at rest takes.
    idle_percent: float = 10.0
    # Seconds after which a measurement begins all the same; chosen, longer than a worker of TorchServe needs to start.
    idle_timeout_s: float = 15.0
    # Seconds over which the load is averaged; psutil advises at least 0.1.
    idle_check_s: float = 0.5


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor.

    Attributes:
        name: the name that it gives itself.
        flags: the flags of BF16_FLAGS that it has.
        cores: number of cores that this process may use.
    """

    name: str
    flags: frozenset[str]
    cores: int

    @property
    def has_amx(self) -> bool:
        """Whether it multiplies bf16 matrices in tiles."""
        return bool(self.flags & AMX_FLAGS)

    def __str__(self) -> str:
        flags = ", ".join(sorted(self.flags)) or "no bf16 instructions"
        return f"{self.name}, {self.cores} cores, {flags if self.has_amx else f'{flags}, no amx'}"

    @classmethod
    def parse(cls, cpuinfo: str, cores: int) -> "Processor":
        """Read the first processor of a /proc/cpuinfo; where it is empty, the system's own name of it stands in."""
        first = cpuinfo.partition("\n\n")[0]
        pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
        fields = {key.strip(): value.strip() for key, value in pairs}
        name = fields.get("model name") or platform.processor() or platform.machine()
        return cls(name, BF16_FLAGS & set(fields.get("flags", "").split()), cores)

    @classmethod
    def here(cls) -> "Processor":
        """Describe this machine's processor."""
        path = Path("/proc/cpuinfo")
        return cls.parse(path.read_text(encoding="utf-8") if path.exists() else "", len(os.sched_getaffinity(0)))


def versions(*packages: str) -> str:
    """Return names and versions of installed packages."""
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)


def memory_mb(pid: int) -> float:
    """Return a process's memory in 10^6 bytes: proportional (PSS), or resident (RSS) where the system counts no other.

    Of a page that several processes share, proportional memory counts a part for each of them.
    """
    memory = psutil.Process(pid).memory_full_info()
    return float(getattr(memory, "pss", memory.rss)) / 1e6


def wait_idle(percent: float = TUNING.idle_percent, timeout_s: float = TUNING.idle_timeout_s) -> float:
    """Wait until the machine is idle, but no longer than `timeout_s`.

    Args:
        percent: share of the time of all cores, in %, that counts as idle, and less.
        timeout_s: seconds after which it returns all the same.

    Returns:
        How busy the machine was last, in percent.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        busy_percent = psutil.cpu_percent(TUNING.idle_check_s)
        if busy_percent <= percent or time.monotonic() > deadline_s:
            return busy_percent
