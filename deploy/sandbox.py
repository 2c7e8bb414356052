"""A TorchServe beside any other: free ports, folders that go when it does. What tests and benchmarks run on.

config.properties -> placed -> started (a Server, stopped and cleaned up at the end)
"""

import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from deploy.models import ROOT
from deploy.run.machine import placed
from deploy.run.properties import moved
from deploy.run.server import Server


def free_ports(number: int) -> list[int]:
    """Find ports of 127.0.0.1 that nothing listens on."""
    with ExitStack() as stack:
        # All are held until the last is known, so none is given twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True, slots=True)
class Ports:
    """Every port of one TorchServe, on 127.0.0.1."""

    inference: int
    management: int
    metrics: int
    grpc_inference: int
    grpc_management: int
    worker: int

    @classmethod
    def free(cls) -> "Ports":
        """Find ports that nothing listens on."""
        return cls(*free_ports(len(fields(cls))))

    def settings(self, model_store: Path) -> dict[str, str]:
        """Return the settings of a config.properties for these ports and a model store."""
        return {
            "inference_address": f"http://127.0.0.1:{self.inference}",
            "management_address": f"http://127.0.0.1:{self.management}",
            "metrics_address": f"http://127.0.0.1:{self.metrics}",
            "grpc_inference_port": str(self.grpc_inference),
            "grpc_management_port": str(self.grpc_management),
            "initial_worker_port": str(self.worker),
            "model_store": str(model_store),
        }


def config_for(text: str, ports: Ports, root: Path, model_store: Path) -> str:
    """Return another server's configuration: the same but for its addresses and model store; see `moved`."""
    return moved(text, root, ports.settings(model_store))


@contextmanager
def started(
    model_store: Path, config: Path = ROOT / "config.properties", extra: Sequence[str] = ()
) -> Iterator[Server]:
    """A running server.

    Args:
        model_store: its archives.
        config: what it is configured by, but for addresses and folders.
        extra: further lines of configuration.

    Raises:
        ServerError: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="torchserve-", ignore_cleanup_errors=True) as folder:
        text = "\n".join([config.read_text(encoding="utf-8"), *extra])
        values = Ports.free().settings(model_store)
        server = placed("sandbox", Path(folder), text, root=ROOT, values=values).server
        try:
            server.start()
            yield server
        finally:
            server.stop()
