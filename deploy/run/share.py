"""Which cores and which GPU each node of a machine gets; pure.

cores, GPUs, how many nodes -> shares: one for each node; with more nodes than cores or GPUs, some share theirs
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A node's part of its machine.

    Attributes:
        cores: numbers of the cores that its processes run on; empty for all, those to come too.
        gpu: the GPU that it sees, as CUDA_VISIBLE_DEVICES has it; None for whatever there is.
    """

    cores: tuple[int, ...] = ()
    gpu: str | None = None


WHOLE = Share()


def shares(cores: Sequence[int], gpus: Sequence[str], nodes: int) -> list[Share]:
    """Split a machine; a node alone has all of it.

    Args:
        cores: numbers of those that may be used. Neighbours stay together, as caches and memory are shared by
            neighbours.
        gpus: as CUDA_VISIBLE_DEVICES names them; none where there are none.
        nodes: how many share the machine.
    """
    if nodes == 1:
        return [WHOLE]
    found = []
    for node in range(nodes):
        if nodes <= len(cores):
            first, last = node * len(cores) // nodes, (node + 1) * len(cores) // nodes
            own = tuple(cores[first:last])
        else:
            own = (cores[node % len(cores)],)
        found.append(Share(own, gpus[node % len(gpus)] if gpus else None))
    return found


@contextmanager
def on_cores(share: Share) -> Iterator[None]:
    """Have what this thread starts within the block run on the share's cores alone."""
    if not share.cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, share.cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def visible_gpu(share: Share) -> dict[str, str]:
    """Return the variables with which its processes see its GPU and no other."""
    return {} if share.gpu is None else {"CUDA_VISIBLE_DEVICES": share.gpu}


def gpus_here(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs of this machine, or those of them that CUDA_VISIBLE_DEVICES leaves."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listed.stdout.splitlines() if line.strip().isdecimal()]
