"""Contenders of a comparison: a model behind a server, or a loop without one.

Endpoint   a model at an address, over HTTP
Loop       a process that runs a loop of load.bench.loops, without a server
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

from deploy.nodes.run.server import Server
from load import LoadError
from load.bench.peer_process import PeerProcess
from load.generate import Attack, Check, ClosedLoop, Load, Target
from load.inputs import Inputs
from torchserve_client.worker_log import WorkerLog, wait_loaded

# Most share of failed requests for which a p99 is valid: refusing requests would make a server look faster.
FAILED = 0.01
# The step in the process of a loop: (way, batch_size) -> number of items that it has computed.
STEPS: list[Callable[[str, int], int]] = []


class Figures(NamedTuple):
    per_s: float  # items per second
    p50_ms: float  # latency of a request
    p99_ms: float  # infinite if over 1 % of requests failed
    remarks: tuple[str, ...] = ()  # reasons to distrust it


@dataclass(frozen=True, slots=True)
class Endpoint:
    name: str
    url: str  # of its predictions
    inputs: Inputs
    items: int = 1  # per request
    headers: Mapping[str, str] = field(default_factory=dict)
    process: PeerProcess | None = None  # a peer's, which is paused while others are measured
    check: Check | None = None  # of responses

    def run(self, load: Load, duration_s: float, warm_up_s: float) -> Figures:
        """Measure once; raise LoadError without a good response."""
        with self.process.awake() if self.process else nullcontext():
            target = Target(self.url, self.headers)
            summary = Attack(target, self.inputs, load, duration_s, warm_up_s, check=self.check).run()
        if not summary.completed:
            statuses = f"statuses {dict(summary.statuses)}, {dict(summary.verdicts)}"
            raise LoadError(f"{self.name}: no good response with {load}: {statuses}")
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
    name: str
    process: ProcessPoolExecutor
    way: str = ""  # one of the loop's ways to compute, if it has several
    batch_size: int = 16  # most items of a micro-batch; a closed loop of fewer clients has smaller ones

    def run(self, load: Load, duration_s: float, warm_up_s: float) -> Figures:
        size = min(load.clients, self.batch_size) if isinstance(load, ClosedLoop) else self.batch_size
        return self.process.submit(_run_loop, self.way, size, duration_s, warm_up_s).result()


@dataclass(frozen=True, slots=True)
class Tuned:
    """A server with the best tuning for each number of clients; open loops have that for the most clients."""

    name: str
    best: Mapping[int, Endpoint]

    def run(self, load: Load, duration_s: float, warm_up_s: float) -> Figures:
        clients = load.clients if isinstance(load, ClosedLoop) else max(self.best)
        return self.best[clients].run(load, duration_s, warm_up_s)


Contender = Endpoint | Loop | Tuned


def register(server: Server, archive: str, name: str, inputs: Inputs, batch_size: int, *, workers: int = 1) -> Endpoint:
    """Register an archive as ARCHIVE-BATCH_SIZE (the window if adaptive), and wait for its workers."""
    model = f"{Path(archive).stem}-{batch_size}"
    log = WorkerLog(server.logs / "model_log.log", model)
    # 1 ms is the least delay that TorchServe accepts: a loaded queue fills batches by itself.
    server.management.register(
        archive, batch_size=batch_size, max_batch_delay_ms=1, initial_workers=workers, model_name=model
    )
    wait_loaded(server.management, model, log)
    return Endpoint(name, f"{server.settings.inference_url}/predictions/{model}", inputs)


@contextmanager
def start_loop(kind: str, folder: Path) -> Iterator[ProcessPoolExecutor]:
    """Run a process with a loop of load.bench.loops on an archive's folder or a checkpoint."""
    with ProcessPoolExecutor(1, get_context("spawn"), _load, (kind, folder)) as process:
        yield process


def _load(kind: str, folder: Path) -> None:
    from load.bench.loops import LOOPS  # noqa: PLC0415 - torch and transformers, only in the loop's process

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark handles Ctrl-C and ends this process
    STEPS.append(LOOPS[kind](folder))


def _run_loop(way: str, batch_size: int, duration_s: float, warm_up_s: float) -> Figures:
    from load.bench.loops import repeat  # noqa: PLC0415

    return Figures(*repeat(partial(STEPS[0], way, batch_size), duration_s, warm_up_s))
