"""Checks that Java's heap and direct memory fit the memory limit."""

from pathlib import Path

import psutil

from deploy.run.properties import ServerSettings

MIB = 2**20
# Memory limits of this process' control group, of version 2 and of version 1.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def excess_memory(settings: ServerSettings) -> str | None:
    """Return one line if vmargs exceeds the memory limit; None if Java fits."""
    limits = [int(path.read_text()) for path in LIMITS if path.is_file() and path.read_text().strip().isdecimal()]
    limit = min([psutil.virtual_memory().total, *limits])
    java = (settings.heap_bytes or 0) + (settings.direct_bytes or 0)
    if java <= limit:
        return None
    return (
        f"vmargs lets Java take {java // MIB} MiB (-Xmx and MaxDirectMemorySize), and the memory limit is "
        f"{limit // MIB} MiB; lower them, and job_queue_size or max_request_size with them"
    )
