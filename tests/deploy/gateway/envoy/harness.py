"""A real Envoy in front of stand-ins, for tests of its configuration."""

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import requests

from deploy.gateway.envoy import files
from deploy.gateway.envoy.listeners import bootstrap
from deploy.gateway.envoy.process import Envoy, ask
from deploy.gateway.settings import GatewaySettings, Ports
from deploy.gateway.state import Fleet, Placement, ServedModel, ServedVersion
from load.sandbox import free_ports
from tests.deploy.gateway.envoy.stand_ins import StandIn, control, models_of
from tests.waiting import until

PLACEMENT = Placement(workers=1, ready_workers=1, batch_size=8, max_batch_delay_ms=1, is_default=True)
SERVED = ("m/1.0", "m/2.0")
# Seconds for a whole request, on a machine that stalls.
TIMEOUT_S = 30.0


class Gateway(AbstractContextManager["Gateway"]):
    """Envoy on free ports in front of nodes that serve `m`, versions 1.0 (the default) and 2.0."""

    def __init__(self, run: Path, settings: GatewaySettings, nodes: int = 2, options: Sequence[str] = ()) -> None:
        self.run = run
        self.nodes = [StandIn(f"node-{number}", SERVED) for number in range(nodes)]
        self.control = control()
        self.models = {"m": ["1.0", "2.0"]}
        http, grpc_port, probe = free_ports(3)
        ports = Ports(http=http, grpc=grpc_port, control=self.control.port, probe=probe)
        # X-Do is of the stand-ins.
        self.settings = replace(settings, ports=ports, forward_headers=("X-Do", *settings.forward_headers))
        self.envoy = Envoy(run)
        self.serve()
        self.envoy.keep(bootstrap(self.settings), *options)
        self.url = f"http://127.0.0.1:{ports.http}"
        self.session = requests.Session()
        self.session.trust_env = False
        self.channel = grpc.insecure_channel(f"127.0.0.1:{ports.grpc}")
        wait(self.is_serving)

    def fleet(self, models: Mapping[str, list[str]] | None = None, **parts: Any) -> Fleet:
        """Return a fleet whose nodes all have all of the models; a model's first version is its default."""
        nodes = {node.name: node.node for node in self.nodes}
        named = {}
        for name, versions in (models or self.models).items():
            served = {each: ServedVersion(each, dict.fromkeys(nodes, PLACEMENT)) for each in versions}
            named[name] = ServedModel(name, served, versions[0])
        return Fleet(nodes=nodes, registered=named, **parts)

    def serve(self, fleet: Fleet | None = None, **parts: Any) -> list[str]:
        """Configure Envoy with a fleet, or with the parts of one; return the files that changed."""
        return files.write(self.settings, self.fleet(**parts) if fleet is None else fleet, self.run)

    def restore(self) -> None:
        """Serve everything from all nodes again, and wait until they all get requests."""
        for node in self.nodes:
            node.models = models_of(SERVED)
            node.release.set()
        self.serve()
        wait(self.is_serving)
        # Until Envoy has every file, it may reject a request.
        names = {node.name for node in self.nodes}
        wait(lambda: {self.ask("POST", "/predictions/m").json().get("by") for _ in range(8)} == names)

    def is_serving(self) -> bool:
        text = self.clusters()
        return '"eds_health_status": "HEALTHY"' in text and "failed_active_health_check" not in text

    def wait_for(self, *names: str) -> None:
        """Wait until these models and versions are served: Envoy gets the cluster of each by itself."""
        for name in names:
            wait(lambda: self.status(f"/predictions/{name}") == 200)  # noqa: B023

    def clusters(self) -> str:
        return ask(self.run, "/clusters?format=json")

    def in_flight(self) -> int:
        return sum(each.in_flight for nodes in self.envoy.endpoints().values() for each in nodes.values())

    def attempts(self) -> int:
        return sum(node.seen.total() for node in self.nodes)

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.session.close()
        self.envoy.stop(TIMEOUT_S)
        for node in self.nodes:
            node.close()
        self.control.close()

    def ask(self, method: str, path: str, **arguments: Any) -> requests.Response:
        return self.session.request(method, self.url + path, timeout=TIMEOUT_S, **arguments)

    def status(self, path: str, **headers: str) -> int:
        """Return the status of a POST; names of headers have _ for -."""
        return self.ask("POST", path, headers=_named(headers)).status_code

    def received(self, method: str, path: str, **arguments: Any) -> Any:
        answer = self.ask(method, path, **arguments)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def served_by(self, path: str, times: int = 8, **headers: str) -> set[str]:
        return {self.received("POST", path, headers=_named(headers))["by"] for _ in range(times)}

    def call(self, method: str, message: bytes = b"", **metadata: str) -> tuple[bytes, Any]:
        """Call by gRPC: return the answer, and the request as a stand-in received it."""
        path = method if "/" in method else f"/inference.GRPCInferenceService/{method}"
        calls = self.channel.unary_unary(path)
        answer, call = calls.with_call(message, timeout=TIMEOUT_S, metadata=tuple(_named(metadata).items()))
        return answer, json.loads(dict(call.initial_metadata())["x-received"])

    def rejected(self, method: str, message: bytes = b"", **metadata: str) -> tuple[int, str]:
        try:
            self.call(method, message, **metadata)
        except grpc.RpcError as error:
            return error.code().value[0], error.details()
        raise AssertionError("it was answered")

    def raw(self, request: bytes) -> str:
        with socket.create_connection(("127.0.0.1", self.settings.ports.http), timeout=TIMEOUT_S) as connection:
            connection.sendall(request)
            return connection.recv(65536).decode("latin-1")

    def logged(self, **fields: object) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            # Envoy writes in blocks: the last line may not be whole yet.
            whole, _, _ = (self.run / "access.log").read_text().rpartition("\n")
            lines = [json.loads(line) for line in whole.splitlines()]
            return [line for line in lines if fields.items() <= line.items()]

        wait(lambda: bool(found()))
        return found()[-1]


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower().replace("_", "-"): value for name, value in headers.items()}


def wait(holds: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    until(holds, timeout_s, every_s=0.02)
