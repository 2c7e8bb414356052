"""What TorchServe's Java needs when clients send as much at once as its limits allow, and whether it is given that.

    config.properties + each model's queue, batch and workers -> Need -> too_little: None, or one line of what to do

Where a body lies: while it arrives, in direct memory; once it is whole, on the heap, until it is answered; and as its
batch goes to the worker, once more in direct memory. An adaptive model's batch is its window, and goes in every
exchange.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.run.properties import Settings

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Java:
    """What was measured of TorchServe 0.12.0 on Java 17, with prefer_direct_buffer=true and bodies of 8 MiB.

    Attributes:
        idle_bytes: of the heap without a request; 27 to 50 MiB.
        usable: share of the heap that bodies may fill. 95 % held; the rest is for smaller objects, and for gaps, since
            the collector (G1) does not move large ones.
        copies: of a body in hand of a thread that has just read it, on the heap.
        arriving: direct memory of a body that arrives, over its size; 1.45 at most.
        leaving: copies of a batch in direct memory while its buffer grows.
        regions: of a heap, at G1's own choice of their size.
        header_bytes: of an array.
    """

    idle_bytes: int = 64 * MIB
    usable: float = 0.8
    copies: int = 2
    arriving: float = 1.5
    leaving: int = 2
    regions: int = 2048
    header_bytes: int = 16


JAVA = Java()


@dataclass(frozen=True, slots=True)
class Served:
    """One model, as far as it holds requests.

    Attributes:
        queue: requests that wait for a worker.
        in_flight: requests that its workers hold: batch_size of each.
    """

    queue: int
    in_flight: int

    @classmethod
    def described(cls, model: Mapping[str, Any]) -> "Served":
        """Take it from what `GET /models/M` says."""
        queue = model["jobQueueStatus"]
        workers = max(int(model["maxWorkers"]), len(model["workers"]))
        return cls(
            int(queue["remainingCapacity"]) + int(queue["pendingRequests"]), int(model["batchSize"]) * max(1, workers)
        )


@dataclass(frozen=True, slots=True)
class Need:
    """What Java needs at worst, in bytes: -Xmx and -XX:MaxDirectMemorySize."""

    heap_bytes: int
    direct_bytes: int


def region_bytes(heap_bytes: int) -> int:
    """Size of a G1 region: the heap in 2048, rounded up to a power of two, 1 to 32 MiB."""
    size = MIB
    while size < min(32 * MIB, heap_bytes / JAVA.regions):
        size *= 2
    return size


def need(settings: Settings, served: Sequence[Served]) -> Need:
    """Compute what holds every request that the limits let in at once, each of the largest size.

    Args:
        settings: the server's; regions are those of its heap.
        served: every model at once.
    """
    body = settings.max_request_size
    region = region_bytes(settings.heap_bytes or 0)
    held = -(-(body + JAVA.header_bytes) // region) * region  # a large array has regions of its own
    in_flight = sum(model.in_flight for model in served)
    requests = sum(model.queue for model in served) + in_flight
    heap = JAVA.idle_bytes + held * (requests + JAVA.copies * settings.threads)
    direct = body * (JAVA.arriving * requests + JAVA.leaving * in_flight)
    return Need(int(heap / JAVA.usable), int(direct))


def too_little(settings: Settings, served: Sequence[Served]) -> str | None:
    """Say in one line what is wrong with what Java is given; None where the worst case fits."""
    if settings.heap_bytes is None or settings.direct_bytes is None:
        return "vmargs names no -Xmx: the heap must be known to say whether it holds what may be queued"
    wanted = need(settings, served)
    if wanted.heap_bytes <= settings.heap_bytes and wanted.direct_bytes <= settings.direct_bytes:
        return None
    requests = sum(model.queue + model.in_flight for model in served)
    heap_mib, direct_mib = (-(-size // MIB) for size in (wanted.heap_bytes, wanted.direct_bytes))
    return (
        f"{requests} requests may be held at once, each of max_request_size {settings.max_request_size}: that needs "
        f"-Xmx{heap_mib}m and -XX:MaxDirectMemorySize={direct_mib}m, and vmargs gives "
        f"{settings.heap_bytes // MIB}m and {settings.direct_bytes // MIB}m; raise these, or lower job_queue_size "
        "(an archive's own jobQueueSize wins over it), batch_size or max_request_size"
    )
