"""The peers are measured side by side, each behind one method: a model on a TorchServe, and the loop without one."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

import requests

from deploy.models import ROOT
from deploy.sandbox import started
from deploy.server import Server
from load.bench.machine import memory_mb
from load.generate.attack import Attack
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Inputs
from load.generate.target import Target
from load.generate.windows import Duration
from load.measure.exchange import OK

# OpenVINO is what is compared, on a machine with a GPU too.
CPU_ONLY = ("number_of_gpu=0",)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what a model is registered with, unless a benchmark says otherwise."""

    # Requests of a batch, chosen: a third of the 48 clients that keep the queue full.
    batch_size: int = 16
    # Milliseconds that a batch waits: the least that TorchServe takes, since a loaded queue fills batches by itself.
    max_batch_delay_ms: int = 1
    # Workers: another one would share its cores with the first.
    workers: int = 1
    # Seconds to wait for a first answer: TorchServe's own default of responseTimeout.
    first_answer_timeout_s: float = 120.0


TUNING = Tuning()
# Seconds in which a loop ends by itself: Ray stops its processes.
END_S = 15


class BenchError(Exception):
    """A peer cannot be measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement.

    Attributes:
        throughput_per_s: inputs per second.
        p50_s: median latency of a request, or of a micro-batch where there are no requests.
        failures: HTTP status other than 200 -> number of requests that ended with it.
    """

    throughput_per_s: float
    p50_s: float
    failures: dict[int, int]


class Peer(Protocol):
    """Something that classifies photographs."""

    def measure(self, clients: int, duration_s: float) -> Measured:
        """Keep a number of requests going for a while.

        Args:
            clients: number of requests at a time.
            duration_s: length of the measurement.

        Raises:
            BenchError: nothing was answered.
        """


class ServedModel:
    """One model of a server, as a peer."""

    def __init__(
        self,
        server: Server,
        name: str,
        bodies: Sequence[bytes],
        batch_size: int = TUNING.batch_size,
        max_batch_delay_ms: int = TUNING.max_batch_delay_ms,
        *,
        address: str | None = None,
        archive: str | None = None,
    ) -> None:
        """Register nothing yet.

        Args:
            server: a server that has the model's archive in its store.
            name: name of the archive, and of the model.
            bodies: bodies of requests, JSON or JPEG, sent in turn.
            batch_size: most requests of a batch.
            max_batch_delay_ms: most ms that a batch waits to be filled.
            address: http://HOST:PORT of what stands in front of the server; None for the server itself.
            archive: its file or folder in the store; None for NAME.mar.
        """
        self._address = address or server.settings.inference_url
        self._max_batch_delay_ms = max_batch_delay_ms
        self._server = server
        self._name = name
        self._archive = archive or f"{name}.mar"
        self._bodies = bodies
        self._batch_size = batch_size
        self._content_type = "application/json" if bodies[0].startswith(b"{") else "image/jpeg"

    @property
    def url(self) -> str:
        """The address of its predictions."""
        return f"{self._address}/predictions/{self._name}"

    def register(self) -> None:
        """Register its archive and wait for its worker."""
        self._server.register(
            self._name,
            self._archive,
            batch_size=self._batch_size,
            max_batch_delay_ms=self._max_batch_delay_ms,
            workers=TUNING.workers,
        )

    def measure(self, clients: int, duration_s: float) -> Measured:
        """See `Peer.measure`; the requests are a closed loop over HTTP."""
        inputs = Inputs.of(self._bodies, self._content_type)
        summary = Attack(Target(self.url), inputs, ClosedLoop(clients), Duration(duration_s)).run()
        if not summary.completed:
            raise BenchError(f"{self._name}: no request of {clients} clients was answered; statuses {summary.failures}")
        return Measured(summary.throughput_per_s, summary.latency_ms(50) / 1e3, summary.failures)

    def worker_memory_mb(self) -> float:
        """Return the memory of its worker process in 10^6 bytes."""
        return memory_mb(self.worker_pid())

    def worker_pid(self) -> int:
        """Find its worker process."""
        (worker,) = self._server.management.describe(self._name)["workers"]
        return int(worker["pid"])

    def answer(self, body: bytes | None = None) -> Any:
        """Ask once and return the answer, parsed.

        Args:
            body: what is sent; None sends the first of its bodies.

        Raises:
            BenchError: the answer's status is not 200.
        """
        with requests.Session() as session:
            session.trust_env = False
            headers = {"Content-Type": self._content_type}
            response = session.post(
                self.url, data=body or self._bodies[0], headers=headers, timeout=TUNING.first_answer_timeout_s
            )
        if response.status_code != OK:
            raise BenchError(f"{self._name} answered {response.status_code}: {response.text}")
        return response.json()


class Child:
    """A loop without a server, in a process that answers each line of JSON with another (load.bench.orders)."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Wait until it has loaded; `engine` is what its engine calls itself."""
        self._orders, self._answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
        self.engine = str(self._read()["engine"])

    @classmethod
    @contextmanager
    def started(cls, module: str, folder: Path, python: Path | str = sys.executable) -> Iterator["Child"]:
        """Start a process, and end it on the way out.

        Args:
            module: name of the module that is its program.
            folder: its argument, our archive as files.
            python: what runs it.
        """
        with subprocess.Popen(
            [python, "-m", module, str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches the benchmark alone, which ends this process.
            start_new_session=True,
        ) as process:
            try:
                yield cls(process)
            finally:
                # Its orders are over; one that has started others ends these.
                cast(IO[str], process.stdin).close()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Order one measurement, and wait for it.

        Raises:
            BenchError: the process has ended.
        """
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise BenchError("the in-process loop ended; its own words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True, slots=True)
class InProcess:
    """The loop of load/bench/in_process.py, as a peer."""

    child: Child

    def measure(self, clients: int, duration_s: float) -> Measured:
        """See `Peer.measure`; a micro-batch has as many images as a batch of that many clients could hold."""
        answer = self.child.ask({"batch_size": min(clients, TUNING.batch_size), "duration_s": duration_s})
        return Measured(**answer, failures={})


def seconds_to_first_answer(model_store: Path, name: str, bodies: Sequence[bytes]) -> float:
    """Measure the seconds from `torchserve --start` over registration to the first answer, on a new server."""
    started_s = time.monotonic()
    with started(model_store, extra=CPU_ONLY) as server:
        model = ServedModel(server, name, bodies)
        model.register()
        model.answer()
        return time.monotonic() - started_s
