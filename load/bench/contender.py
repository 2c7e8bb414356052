"""Contenders: what is put under load, a model behind a server or a loop without one.

    Served   a model at an address, asked over HTTP
    Loop     a process of its own, in which a loop of load.bench.loops computes the same without a server

A contender that is not measured uses no processor time: loops wait for commands, and a peer's processes are paused.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from deploy.run.server import Server
from load.bench.peer_process import PeerProcess
from load.errors import LoadError
from load.generate import Attack, Check, ClosedLoop, Load, Target
from load.inputs import Inputs
from torchserve_client.worker_log import WorkerLog, wait_loaded

# Share of the requests that may fail before a percentile counts them: a server that refuses would be the faster for it.
FAILED = 0.01
# In the process of a loop: (way, batch_size) -> number of items, having done some of the work.
STEPS: list[Callable[[str, int], int]] = []


class Figures(NamedTuple):
    """One measurement.

    Attributes:
        per_s: items per second.
        p50_ms, p99_ms: latency of a request; p99 is infinite where more than 1 % were not answered well.
        doubts: reasons to distrust it.
    """

    per_s: float
    p50_ms: float
    p99_ms: float
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """A model behind a server."""

    name: str
    url: str  # where requests are posted to
    inputs: Inputs
    items: int = 1  # of a request
    headers: Mapping[str, str] = field(default_factory=dict)
    process: PeerProcess | None = None  # a peer's, which is paused while others are measured
    check: Check | None = None  # judges answers; None believes them

    def run(self, load: Load, duration_s: float, warm_up_s: float) -> Figures:
        """Measure once; raises LoadError where nothing was answered well."""
        with self.process.awake() if self.process else nullcontext():
            target = Target(self.url, self.headers)
            summary = Attack(target, self.inputs, load, duration_s, warm_up_s, check=self.check).run()
        if not summary.completed:
            answers = f"statuses {dict(summary.statuses)}, {dict(summary.verdicts)}"
            raise LoadError(f"{self.name}: no request of {load} was answered well: {answers}")
        failures = (f"failed requests by status: {summary.failures}",) if summary.failures else ()
        has_failed = summary.requests - summary.completed > FAILED * summary.requests
        return Figures(
            self.items * summary.throughput_per_s,
            summary.latency_ms(50),
            inf if has_failed else summary.latency_ms(99),
            (*failures, *summary.invalid_reasons),
        )


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop without a server, in what `loop_process` started."""

    name: str
    process: ProcessPoolExecutor
    way: str = ""  # how it computes, where it has several ways
    batch_size: int = 16  # items of a micro-batch; of a closed loop of fewer clients their number

    def run(self, load: Load, duration_s: float, warm_up_s: float) -> Figures:
        """Measure once."""
        size = min(load.clients, self.batch_size) if isinstance(load, ClosedLoop) else self.batch_size
        return self.process.submit(_measured, self.way, size, duration_s, warm_up_s).result()


Contender = Served | Loop


def registered(server: Server, archive: str, name: str, inputs: Inputs, batch_size: int, *, workers: int = 1) -> Served:
    """Register an archive of a server's store as ARCHIVE-BATCH_SIZE, and wait for its workers.

    `name` and `inputs` are the contender's. `batch_size` is the window of an adaptive archive.
    """
    model = f"{Path(archive).stem}-{batch_size}"
    log = WorkerLog(server.logs / "model_log.log", model)
    # A delay of 1 ms is the least that TorchServe takes: a loaded queue fills batches by itself.
    server.management.register(
        archive, batch_size=batch_size, max_batch_delay_ms=1, initial_workers=workers, model_name=model
    )
    wait_loaded(server.management, model, log)
    return Served(name, f"{server.settings.inference_url}/predictions/{model}", inputs)


@contextmanager
def loop_process(kind: str, folder: Path) -> Iterator[ProcessPoolExecutor]:
    """Start a process with a loop of load.bench.loops on an archive's folder or a checkpoint; end it on the way out."""
    with ProcessPoolExecutor(1, get_context("spawn"), _load, (kind, folder)) as process:
        yield process


def _load(kind: str, folder: Path) -> None:
    from load.bench.loops import LOOPS  # noqa: PLC0415 - torch and transformers, in the loop's process alone

    # Ctrl-C is for the benchmark, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    STEPS.append(LOOPS[kind](folder))


def _measured(way: str, batch_size: int, duration_s: float, warm_up_s: float) -> Figures:
    from load.bench.loops import repeated  # noqa: PLC0415

    return Figures(*repeated(partial(STEPS[0], way, batch_size), duration_s, warm_up_s))
