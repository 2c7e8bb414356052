"""The Server-Timing header of an answer (W3C): where the server's time went, and how many items shared the batch. Pure.

decode;dur=1.61, wait;dur=2.40, forward;dur=178.20, encode;dur=0.04, batch;desc="8"
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

ENTRY = re.compile(r'\s*([\w-]+)\s*(?:;\s*dur=([\d.]+))?(?:;\s*desc="?([^",;]*)"?)?')
BATCH = "batch"


@lru_cache(maxsize=4096)
def parse(header: str) -> tuple[dict[str, float], int | None]:
    """Durations in milliseconds by name, and the batch's size where it is named; what is not understood is left out."""
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
    """What the headers of many answers come to.

    Attributes:
        mean_ms: name -> mean over the answers that have it.
        requests_by_batch_size: how many answers were in a batch of so many items.
    """

    mean_ms: dict[str, float]
    requests_by_batch_size: dict[int, int]

    @property
    def mean_batch_size(self) -> float | None:
        """Of the batches, not of the requests: each batch of n answered n of them. None where no answer names one."""
        batches = sum(count / size for size, count in self.requests_by_batch_size.items() if size)
        return sum(self.requests_by_batch_size.values()) / batches if batches else None

    @classmethod
    def of(cls, headers: Iterable[str | None]) -> "Timings":
        """Sum up."""
        durations: defaultdict[str, list[float]] = defaultdict(list)
        sizes: Counter[int] = Counter()
        for header in headers:
            if header is None:
                continue
            durations_ms, batch = parse(header)
            for name, duration_ms in durations_ms.items():
                durations[name].append(duration_ms)
            if batch is not None:
                sizes[batch] += 1
        return cls({name: sum(each) / len(each) for name, each in durations.items()}, dict(sorted(sizes.items())))
