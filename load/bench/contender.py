"""Contenders: what is put under load, a model behind a server or a loop without one.

    Served   a model at an address, asked over HTTP
    Loop     a process of load.bench.loops, which computes the same without a server

A contender that is not measured takes no processor time: loops wait for orders, and a peer's processes are paused.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import IO, NamedTuple, cast

from deploy.models import ROOT
from deploy.server import Server
from load.bench.peer_process import PeerProcess
from load.errors import LoadError
from load.generate import Attack, Check, ClosedLoop, Load, Target
from load.inputs import Inputs
from torchserve_client.worker_log import WorkerLog, wait_loaded

# Seconds in which a loop ends by itself.
END_S = 15
# Share of the requests that may fail before a percentile counts them: a server that refuses would be the faster for it.
FAILED = 0.01


class Figures(NamedTuple):
    """One measurement.

    Attributes:
        per_s: items per second.
        p50_ms, p99_ms: latency of a request; p99 is infinite where more than 1 % were not answered well.
        doubts: reasons not to believe it.
    """

    per_s: float
    p50_ms: float
    p99_ms: float
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """A model behind a server.

    Attributes:
        name: as the table has it.
        url: where requests are posted to.
        inputs: the requests.
        items: inputs of a request.
        headers: sent beside the content type.
        process: a peer's, which is paused while others are measured.
        check: judges answers; None believes them.
    """

    name: str
    url: str
    inputs: Inputs
    items: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)
    process: PeerProcess | None = None
    check: Check | None = None

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
    """A loop without a server, in a process that answers each line of JSON with another; see load.bench.loops.

    Attributes:
        name: as the table has it.
        process: what `loop_process` started.
        way: how it computes, for a loop that has several ways.
        batch_size: items of a micro-batch; of a closed loop of fewer clients their number.
    """

    name: str
    process: "subprocess.Popen[str]"
    way: str = ""
    batch_size: int = 16

    def run(self, load: Load, duration_s: float, warm_up_s: float) -> Figures:
        """Measure once; raises LoadError where the process has ended."""
        size = min(load.clients, self.batch_size) if isinstance(load, ClosedLoop) else self.batch_size
        order = {"way": self.way, "batch_size": size, "duration_s": duration_s, "warm_up_s": warm_up_s}
        print(json.dumps(order), file=self.process.stdin, flush=True)
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise LoadError(f"{self.name}: the loop ended; its own words are above")
        return Figures(**json.loads(line))


Contender = Served | Loop


def registered(server: Server, archive: str, name: str, inputs: Inputs, batch_size: int) -> Served:
    """Register an archive of a server's store and wait for its one worker.

    Args:
        server: the TorchServe.
        archive: file or folder in its store; the model is registered as its name and the batch_size.
        name, inputs: of the contender.
        batch_size: most requests of a batch; the window of an adaptive archive.
    """
    model = f"{Path(archive).stem}-{batch_size}"
    log = WorkerLog(server.logs / "model_log.log", model)
    # A delay of 1 ms is the least that TorchServe takes: a loaded queue fills batches by itself.
    server.management.register(
        archive, batch_size=batch_size, max_batch_delay_ms=1, initial_workers=1, model_name=model
    )
    wait_loaded(server.management, model, log)
    return Served(name, f"{server.settings.inference_url}/predictions/{model}", inputs)


@contextmanager
def loop_process(kind: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a process of load.bench.loops, and end it on the way out.

    Args:
        kind: which of its loops.
        folder: the archive as a folder, or the checkpoint.
    """
    command = [sys.executable, "-m", "load.bench.loops", kind, str(folder)]
    pipe = subprocess.PIPE
    # Ctrl-C reaches the benchmark alone, which ends this process.
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            cast(IO[str], process.stdin).close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
