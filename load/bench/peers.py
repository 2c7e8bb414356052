"""What is measured side by side, each behind one method: a model on a TorchServe, and the loop without one."""

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

BATCH_SIZE, MAX_BATCH_DELAY_MS, WORKERS = 16, 1, 1
# OpenVINO is what is compared, on a machine with a GPU too.
CPU_ONLY = ("number_of_gpu=0",)
FIRST_ANSWER_TIMEOUT_S = 120.0


class BenchError(Exception):
    """A peer cannot be measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement.

    Attributes:
        throughput_per_s: images.
        p50_s: median latency; of a request, or of a batch where there are no requests.
        failures: HTTP status -> count, of what was not answered 200.
    """

    throughput_per_s: float
    p50_s: float
    failures: dict[int, int]


class Peer(Protocol):
    """Something that classifies photographs."""

    def measure(self, clients: int, duration_s: float) -> Measured:
        """Keep this many requests going for a while."""


class ServedModel:
    """One model of a server."""

    def __init__(
        self,
        server: Server,
        name: str,
        bodies: Sequence[bytes],
        batch_size: int = BATCH_SIZE,
        max_batch_delay_ms: int = MAX_BATCH_DELAY_MS,
    ) -> None:
        self._max_batch_delay_ms = max_batch_delay_ms
        self._server = server
        self._name = name
        self._bodies = bodies
        self._batch_size = batch_size
        self._content_type = "application/json" if bodies[0].startswith(b"{") else "image/jpeg"

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"{self._server.settings.inference_url}/predictions/{self._name}"

    def register(self) -> None:
        """Register its archive and wait for its worker."""
        self._server.register(
            self._name,
            f"{self._name}.mar",
            batch_size=self._batch_size,
            max_batch_delay_ms=self._max_batch_delay_ms,
            workers=WORKERS,
        )

    def measure(self, clients: int, duration_s: float) -> Measured:
        """See `Peer.measure`: a closed loop over HTTP."""
        inputs = Inputs.of(self._bodies, self._content_type)
        summary = Attack(Target(self.url), inputs, ClosedLoop(clients), Duration(duration_s)).run()
        if not summary.completed:
            raise BenchError(f"{self._name}: no request of {clients} clients was answered; statuses {summary.failures}")
        return Measured(summary.throughput_per_s, summary.latency_ms(50) / 1e3, summary.failures)

    def worker_memory_mb(self) -> float:
        """Memory of its worker process."""
        (worker,) = self._server.management.describe(self._name)["workers"]
        return memory_mb(int(worker["pid"]))

    def answer(self, body: bytes | None = None) -> Any:
        """Ask once, for this or the first of its bodies; the answer, parsed."""
        with requests.Session() as session:
            session.trust_env = False
            headers = {"Content-Type": self._content_type}
            response = session.post(
                self.url, data=body or self._bodies[0], headers=headers, timeout=FIRST_ANSWER_TIMEOUT_S
            )
        if response.status_code != OK:
            raise BenchError(f"{self._name} answered {response.status_code}: {response.text}")
        return response.json()


class Child:
    """A loop without a server, in a process of its own that answers a line of JSON with one."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Wait until it has loaded; `engine` is what its engine calls itself."""
        self._orders, self._answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
        self.engine = str(self._read()["engine"])

    @classmethod
    @contextmanager
    def started(cls, module: str, folder: Path) -> Iterator["Child"]:
        """Start it, and end it on the way out.

        Args:
            module: that runs as a program.
            folder: our archive, unpacked; its argument.
        """
        with subprocess.Popen(
            [sys.executable, "-m", module, str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the benchmark, which ends it.
            start_new_session=True,
        ) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """One measurement."""
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
    """load/bench/in_process.py as a peer."""

    child: Child

    def measure(self, clients: int, duration_s: float) -> Measured:
        """See `Peer.measure`: as many images at once as a batch of that many clients could hold."""
        answer = self.child.ask({"batch_size": min(clients, BATCH_SIZE), "duration_s": duration_s})
        return Measured(**answer, failures={})


def seconds_to_first_answer(model_store: Path, name: str, bodies: Sequence[bytes]) -> float:
    """From `torchserve --start` over registration to the first answer, on a server that is new."""
    started_s = time.monotonic()
    with started(model_store, extra=CPU_ONLY) as server:
        model = ServedModel(server, name, bodies)
        model.register()
        model.answer()
        return time.monotonic() - started_s
