"""Reads an answer's Server-Timing (W3C): where the server's time went, and the size of the micro-batch. Pure.

decode;dur=1.61, wait;dur=2.40, forward;dur=178.20, encode;dur=0.04, batch;desc="8"
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

ENTRY = re.compile(r'\s*([\w-]+)\s*(?:;\s*dur=([\d.]+))?(?:;\s*desc="?([^",;]*)"?)?')
BATCH = "batch"


# Headers whose parse is remembered: one or two MB.
@lru_cache(maxsize=4096)
def parse(header: str) -> tuple[dict[str, float], int | None]:
    """Read one header; entries that are not understood are left out.

    Returns:
        Durations in ms by name; items of the micro-batch, or None where the header does not say.
    """
    durations_ms: dict[str, float] = {}
    batch = None
    for part in header.split(","):
        match = ENTRY.match(part)
        if match is None:
            continue
        name, duration, description = match.groups()
        if duration is not None and duration.count(".") <= 1 and duration != ".":
            durations_ms[name] = float(duration)
        if name == BATCH and description is not None and description.isdecimal():
            batch = int(description)
    return durations_ms, batch


@dataclass(frozen=True, slots=True)
class Timings:
    """The headers of many answers, summed up.

    Attributes:
        mean_ms: name of a duration -> mean in ms over the answers that have it.
        requests_by_batch_size: items of a micro-batch -> number of answers that were in one of that size.
    """

    mean_ms: dict[str, float]
    requests_by_batch_size: dict[int, int]

    @property
    def mean_batch_size(self) -> float | None:
        """Mean over the micro-batches, not the requests: one of n items answered n; None where no answer names one."""
        batches = sum(count / size for size, count in self.requests_by_batch_size.items() if size)
        return sum(self.requests_by_batch_size.values()) / batches if batches else None

    @classmethod
    def of(cls, headers: Iterable[str | None]) -> "Timings":
        """Sum up the headers of all answers; None stands for an answer without one."""
        sums_ms: defaultdict[str, float] = defaultdict(float)
        counts: Counter[str] = Counter()
        sizes: Counter[int] = Counter()
        for header in headers:
            if header is None:
                continue
            durations_ms, batch = parse(header)
            for name, duration_ms in durations_ms.items():
                sums_ms[name] += duration_ms
                counts[name] += 1
            if batch is not None:
                sizes[batch] += 1
        return cls({name: sum_ms / counts[name] for name, sum_ms in sums_ms.items()}, dict(sorted(sizes.items())))
