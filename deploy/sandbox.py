"""A TorchServe beside any other: free ports, folders that go when it does. What tests and benchmarks run on.

config.properties -> config_for -> started (a Server, stopped and cleaned up at the end)
"""

import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from deploy.models import ROOT
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


def config_for(text: str, ports: Ports, root: Path, model_store: Path) -> str:
    """Another server's configuration, the same but for its addresses and model store.

    Args:
        text: a config.properties.
        ports: of the other server.
        root: what the relative paths of `text` are relative to; they become absolute.
        model_store: of the other server.

    Returns:
        Its config.properties; lines that stay keep their order, those that are replaced follow.
    """
    replaced = {
        "inference_address": f"http://127.0.0.1:{ports.inference}",
        "management_address": f"http://127.0.0.1:{ports.management}",
        "metrics_address": f"http://127.0.0.1:{ports.metrics}",
        "grpc_inference_port": str(ports.grpc_inference),
        "grpc_management_port": str(ports.grpc_management),
        "initial_worker_port": str(ports.worker),
        "model_store": str(model_store),
    }
    return moved(text, root, replaced)


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
        text = config_for(config.read_text(encoding="utf-8"), Ports.free(), ROOT, model_store)
        own_config, temporary = Path(folder) / "config.properties", Path(folder) / "tmp"
        own_config.write_text("\n".join([text, *extra]) + "\n", encoding="utf-8")
        temporary.mkdir()
        server = Server(own_config, directory=Path(folder), temporary=temporary)
        try:
            server.start()
            yield server
        finally:
            server.stop()
