"""The control process in this process, over stand-ins of two nodes and of Envoy."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import requests

from deploy.gateway.control.__main__ import make_control_app, make_metrics_app, serve
from deploy.gateway.control.gateway import Control
from deploy.gateway.envoy import files
from deploy.gateway.envoy.listeners import CLUSTERS
from deploy.gateway.envoy.process import Endpoint, Endpoints, Envoy
from deploy.gateway.settings import GatewaySettings, Key
from deploy.gateway.state import Fleet, ServedVersion
from handlers.protocol.wire import PROTOBUF
from tests.deploy.gateway.envoy.harness import TIMEOUT_S, wait
from tests.deploy.gateway.envoy.stand_ins import StandIn
from tests.load.fake_server import run


class StillEnvoy(Envoy):
    """An Envoy that does not run; it returns the numbers that a test sets."""

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self.is_running = True
        self.in_flight: dict[str, dict[str, int]] = {}
        self.unhealthy: set[str] = set()

    def endpoints(self) -> Endpoints:
        if not self.is_running:
            raise ConnectionError
        # Every other cluster has a node.
        written = self._state_dir / CLUSTERS
        names = [each["name"] for each in json.loads(written.read_text())["resources"]] if written.exists() else []
        found = {name: {"any": Endpoint(0, name not in self.unhealthy)} for name in names}
        for cluster, nodes in self.in_flight.items():
            found[cluster] = {node: Endpoint(count, cluster not in self.unhealthy) for node, count in nodes.items()}
        return found

    def prometheus(self) -> str:
        return "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n"


class Scene(AbstractContextManager["Scene"]):
    """A control process, whose two nodes both serve `classifier` 1.0, and a client of it."""

    def __init__(self, folder: Path, real: Envoy | None = None, **settings: Any) -> None:
        self.folder, self.settings = folder, GatewaySettings(**settings)
        self.envoy, self.real = StillEnvoy(folder), real
        self.first, self.second = (StandIn(f"node-{number}", ["classifier/1.0"]) for number in (1, 2))
        self.open()

    def open(self) -> None:
        async def start() -> None:
            nodes = [self.first.node, self.second.node]
            self.gateway = Control(self.settings, nodes, self.real or self.envoy, self.folder)
            await self.gateway.start()
            apps = (make_control_app(self.gateway), make_metrics_app(self.gateway))
            self._runners = [await serve(app, "127.0.0.1", 0) for app in apps]

        run(start())
        self.url, self.metrics_url = (f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in self._runners)
        wait(lambda: self.version.metadata is not None)

    def shut(self) -> None:
        for runner in self._runners:
            run(runner.cleanup())
        run(self.gateway.close())

    def restart(self) -> None:
        self.shut()
        self.open()

    def __exit__(self, *_: object) -> None:
        self.shut()
        self.first.close()
        self.second.close()

    @property
    def version(self) -> ServedVersion:
        return self.gateway.fleet.registered["classifier"].versions["1.0"]

    @property
    def fleet(self) -> Fleet:
        """The fleet that Envoy's files were written for."""
        fleet, expected = self.gateway.fleet, self.folder / "expected"
        files.write(self.settings, fleet, expected)
        for path in expected.rglob("*.json"):
            assert path.read_text() == (self.folder / path.relative_to(expected)).read_text()
        return fleet

    def look(self) -> None:
        run(self.gateway.poll())

    def register(self, *versions: dict[str, Any], on_both: bool = True) -> None:
        """Replace the versions of `classifier`, on both nodes or only on the first."""
        for node in (self.first, self.second) if on_both else (self.first,):
            node.models = {"classifier": [*versions]} if versions else {}
        self.look()

    def ask(self, method: str, path: str, document: object = None, **words: Any) -> tuple[int, Any]:
        answer = requests.request(method, self.url + path, json=document, timeout=TIMEOUT_S, **words)
        return answer.status_code, answer.json() if answer.content else None

    def status(self, path: str) -> int:
        return self.ask("GET", path)[0]

    def call(self, method: str, body: bytes = b"") -> tuple[int, str, bytes]:
        """Call by gRPC as Envoy's bridge does: return the status, its message, and the body."""
        url = f"{self.url}{method if method.startswith('/') else f'/inference.GRPCInferenceService/{method}'}"
        answer = requests.post(url, data=body, headers={"Content-Type": PROTOBUF}, timeout=TIMEOUT_S)
        assert answer.headers["Content-Type"] == PROTOBUF
        message = unquote(answer.headers.get("X-Grpc-Message", ""))
        return int(answer.headers.get("X-Grpc-Status", 0)), message, answer.content

    def metrics(self, path: str = "/metrics") -> list[str]:
        answer = requests.get(self.metrics_url + path, timeout=TIMEOUT_S)
        assert answer.status_code == 200
        return answer.text.splitlines()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as made:
        yield made


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path, management=True, keys=(Key(client="operator", key="k" * 16),)) as made:
        yield made
