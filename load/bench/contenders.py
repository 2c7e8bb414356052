"""The servers that one network is behind, each as what a load is sent to: the peers, ours, ours in adaptive mode.

Contender.run(load) -> Summary; none but the one that is measured takes processor time meanwhile
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import requests

from load.bench.machine import wait_idle
from load.bench.onnx_peers import Running
from load.bench.peers import BenchError
from load.generate.attack import Attack, Load
from load.generate.inputs import Inputs
from load.generate.target import Target
from load.generate.windows import Duration
from load.measure.exchange import OK
from load.measure.summary import Summary

# Seconds under load before a window opens: BentoML learns from its first requests how long batches take.
WARM_UP_S = 1.5
# Largest difference of a number that another runtime is allowed, as a share of the largest number.
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Contender:
    """One server.

    Attributes:
        name: as the table has it.
        url: where a row is posted to.
        bodies: rows as it takes them.
        content_type: of the bodies.
        headers: sent beside it.
        values: reads the numbers of an answer's body.
        running: its processes, where they are to be paused while others are measured.
    """

    name: str
    url: str
    bodies: Sequence[bytes]
    values: Callable[[bytes], "np.typing.NDArray[np.float32]"]
    content_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    running: Running | None = None

    def check(self, expected: "np.typing.NDArray[np.float32]") -> None:
        """Hold the answer to its first row against the runtime's own.

        Raises:
            BenchError: it is another, or none.
        """
        with self._awake(), requests.Session() as session:
            session.trust_env = False
            headers = {**self.headers, "Content-Type": self.content_type}
            answer = session.post(self.url, data=self.bodies[0], headers=headers, timeout=60)
        if answer.status_code != OK:
            raise BenchError(f"{self.name} answered {answer.status_code}: {answer.text[:500]}")
        values = self.values(answer.content)
        most = TOLERANCE * np.abs(expected).max()
        if values.size != expected.size or not np.allclose(values.ravel(), expected.ravel(), rtol=0, atol=most):
            raise BenchError(f"{self.name} computes something else than onnxruntime")

    def run(self, load: Load, duration_s: float) -> Summary:
        """Measure once, on a machine that does nothing else.

        Raises:
            BenchError: nothing was answered.
        """
        with self._awake():
            wait_idle()
            inputs = Inputs.of(self.bodies, self.content_type)
            target = Target(self.url, self.headers)
            summary = Attack(target, inputs, load, Duration(duration_s), WARM_UP_S).run()
        if not summary.completed:
            raise BenchError(f"{self.name}: no request of {load} was answered; statuses {summary.failures}")
        return summary

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if self.running is None:
            yield
            return
        self.running.resume()
        try:
            yield
        finally:
            self.running.pause()
