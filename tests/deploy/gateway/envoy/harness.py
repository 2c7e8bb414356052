"""A real Envoy in front of stand-ins, for the tests of what its configuration does."""

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import requests

from deploy.gateway.envoy import admin, files
from deploy.gateway.envoy.process import Envoy
from deploy.gateway.settings import Ports, Settings
from deploy.gateway.state import Canary, Fleet, Model, Replica, Version
from tests.deploy.gateway.envoy.stand_ins import Server, StandIn, control

REPLICA = Replica(workers=1, ready_workers=1, batch_size=8, max_batch_delay_ms=1, is_default=True)
# The whole request, whatever the machine does meanwhile.
TIMEOUT_S = 30.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def fleet(
    nodes: list[StandIn],
    models: Mapping[str, list[str]],
    *,
    canaries: Mapping[str, Canary] | None = None,
    draining: frozenset[str] = frozenset(),
) -> Fleet:
    """All nodes have all of the models; a model's first version is its default."""
    replicas = {node.name: REPLICA for node in nodes}
    return Fleet(
        nodes={node.name: node.node for node in nodes},
        draining=draining,
        models={
            name: Model(name, {version: Version(version, replicas) for version in versions}, versions[0])
            for name, versions in models.items()
        },
        canaries=canaries or {},
    )


class Gateway:
    """Envoy on free ports, its stand-ins, and the means to ask it."""

    def __init__(
        self, run: Path, settings: Settings, nodes: int = 2, versions: tuple[str, ...] = ("1.0", "2.0")
    ) -> None:
        served = {"m", *(f"m/{version}" for version in versions)}
        self.run = run
        self.nodes = [StandIn(f"node-{number}", served) for number in range(nodes)]
        self.control: Server = control()
        self.models = {"m": list(versions)}
        self.settings = replace(settings, ports=Ports(http=free_port(), grpc=free_port(), control=self.control.port))
        self.envoy = Envoy(run)
        self.write(fleet(self.nodes, self.models))
        self.envoy.start(self.settings)
        self.session = requests.Session()
        self.session.trust_env = False
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.settings.ports.grpc}")
        wait(self.is_serving)

    def write(self, state: Fleet) -> list[str]:
        return files.write(self.settings, state, self.run)

    def is_serving(self) -> bool:
        text = json.dumps(self.clusters())
        return text.count('"eds_health_status": "HEALTHY"') > 0 and "failed_active_health_check" not in text

    def clusters(self) -> Any:
        return admin.document(self.run, "/clusters?format=json")

    def close(self) -> None:
        self.channel.close()
        self.session.close()
        self.envoy.stop(TIMEOUT_S)
        for node in self.nodes:
            node.close()
        self.control.close()

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.ports.http}"

    def ask(self, method: str, path: str, **arguments: Any) -> requests.Response:
        return self.session.request(method, self.url + path, timeout=TIMEOUT_S, **arguments)

    def told(self, method: str, path: str, **arguments: Any) -> Any:
        """Ask, and give what a stand-in got of it."""
        answer = self.ask(method, path, **arguments)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def call(self, method: str, message: bytes = b"", **headers: str) -> tuple[bytes, Any]:
        """Call by gRPC: the answer, and what a stand-in got.

        Raises:
            grpc.RpcError: as grpc does.
        """
        path = method if "/" in method else f"/inference.GRPCInferenceService/{method}"
        metadata = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        answer, call = self.channel.unary_unary(path).with_call(message, timeout=TIMEOUT_S, metadata=metadata)
        return answer, json.loads(dict(call.initial_metadata())["x-told"])

    def refused(self, method: str, message: bytes = b"", **headers: str) -> tuple[int, str]:
        """Call by gRPC what is refused: status and message."""
        try:
            self.call(method, message, **headers)
        except grpc.RpcError as error:
            return error.code().value[0], error.details()
        raise AssertionError("it was answered")

    def log(self) -> list[dict[str, Any]]:
        # Envoy writes in blocks: the last line may not be whole yet.
        whole, _, _ = (self.run / "access.log").read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]


def wait(holds: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until something holds; a test fails that waits in vain."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
