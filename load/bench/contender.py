"""Contenders: what is put under load, a model behind a server or a loop without one.

    Served   a model at an address, asked over HTTP
    Loop     a process of load.bench.loops that computes the same without a server

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

import requests

from deploy.models import ROOT
from deploy.server import Server
from load.bench.peer_process import PeerProcess
from load.errors import LoadError
from load.generate import Attack, ClosedLoop, Load, Target
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
        doubts: reasons not to believe it; empty where there are none.
    """

    per_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0
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
        process: a peer's process, which is paused while others are measured.
    """

    name: str
    url: str
    inputs: Inputs
    items: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)
    process: PeerProcess | None = None

    def run(self, load: Load, duration_s: float, warm_up_s: float) -> Figures:
        """Measure once; raises LoadError where nothing was answered well."""
        with self.process.awake() if self.process else nullcontext():
            summary = Attack(Target(self.url, self.headers), self.inputs, load, duration_s, warm_up_s).run()
        if not summary.completed:
            raise LoadError(f"{self.name}: no request of {load} was answered; statuses {summary.failures}")
        failures = (f"failed requests by status: {summary.failures}",) if summary.failures else ()
        has_failed = summary.requests - summary.completed > FAILED * summary.requests
        return Figures(
            self.items * summary.throughput_per_s,
            summary.latency_ms(50),
            inf if has_failed else summary.latency_ms(99),
            (*failures, *summary.invalid_reasons),
        )

    def ask(self, number: int = 0) -> bytes:
        """Ask once and return the answer's body; raises LoadError where its status is not 200."""
        item = self.inputs.items[number]
        with self.process.awake() if self.process else nullcontext(), requests.Session() as session:
            session.trust_env = False
            headers = {**self.headers, "Content-Type": item.content_type}
            reply = session.post(self.url, data=item.body, headers=headers, timeout=120)
        if not reply.ok:
            raise LoadError(f"{self.name} answered {reply.status_code}: {reply.text[:500]}")
        return reply.content


def registered(
    server: Server,
    archive: str,
    name: str,
    inputs: Inputs,
    batch_size: int,
    *,
    max_batch_delay_ms: int = 1,
    items: int = 1,
) -> Served:
    """Register an archive of a server's store and wait for its one worker.

    Args:
        server: the TorchServe.
        archive: file or folder in its store.
        name: of the contender; the model is registered as the archive's name, batch_size and delay.
        inputs: what it is asked.
        batch_size: most requests of a batch; the window of an adaptive archive.
        max_batch_delay_ms: what a batch waits; 1 is the least that TorchServe takes, and a queue fills by itself.
        items: inputs of a request.
    """
    model = f"{Path(archive).stem}-{batch_size}-{max_batch_delay_ms}"
    log = WorkerLog(server.logs / "model_log.log", model)
    server.management.register(
        archive, batch_size=batch_size, max_batch_delay_ms=max_batch_delay_ms, initial_workers=1, model_name=model
    )
    wait_loaded(server.management, model, log)
    return Served(name, f"{server.settings.inference_url}/predictions/{model}", inputs, items)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop without a server, in a process that answers each line of JSON with another; see load.bench.loops.

    Attributes:
        name: as the table has it.
        process: its process.
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
        orders, answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        order = {"way": self.way, "batch_size": size, "duration_s": duration_s, "warm_up_s": warm_up_s}
        orders.write(json.dumps(order) + "\n")
        orders.flush()
        line = answers.readline()
        if not line:
            raise LoadError(f"{self.name}: the loop ended; its own words are above")
        return Figures(**json.loads(line))


Contender = Served | Loop


@contextmanager
def loop_process(kind: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a process of load.bench.loops, and end it on the way out.

    Args:
        kind: which of its loops.
        folder: the archive as a folder, or the checkpoint.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "load.bench.loops", kind, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C reaches the benchmark alone, which ends this process.
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            cast(IO[str], process.stdin).close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
