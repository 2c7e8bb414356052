"""What the server's processes hold, second by second: memory, descriptors, threads; and how memory grows.

TorchServe's Java process and its workers -> Sample, once a second -> slope_mb_per_min

A worker that was killed is another process afterwards: its samples are kept apart by pid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil

JAVA = "java"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process.

    Attributes:
        at_s: when, in seconds of time.perf_counter.
        name: JAVA, or the model whose worker it is.
        pid: the process.
        rss_mb: resident memory, 10^6 bytes.
        descriptors: open file descriptors.
        threads: number of threads.
    """

    at_s: float
    name: str
    pid: int
    rss_mb: float
    descriptors: int
    threads: int


def look(at_s: float, pids: dict[str, int]) -> list[Sample]:
    """Look at each process; one that is gone meanwhile is left out.

    Args:
        at_s: the time now.
        pids: process by name.
    """
    samples = []
    for name, pid in pids.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                rss_mb = process.memory_info().rss / 1e6
                samples.append(Sample(at_s, name, pid, rss_mb, process.num_fds(), process.num_threads()))
        except psutil.Error:
            continue
    return samples


def slope_mb_per_min(samples: Sequence[Sample]) -> float:
    """Fit a line through the memory of one process, by least squares; 0 where there are fewer than two moments."""
    at_min = np.array([sample.at_s for sample in samples]) / 60
    if len(samples) < 2 or at_min.min() == at_min.max():
        return 0.0
    slope, _ = np.polyfit(at_min - at_min[0], [sample.rss_mb for sample in samples], 1)
    return float(slope)
