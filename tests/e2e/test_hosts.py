"""Two processes of deploy.serve and one TorchServe, each with one model, behind one gateway.

One site for the module, in the order of its tests: asked, drained, killed.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy import sandbox
from deploy.run.node import Node, write_nodes
from deploy.run.server import Server
from deploy.sandbox import Sandbox
from tests.e2e.clients import Clients, assert_all_answered
from tests.e2e.conftest import MOBILENET
from tests.hosts import Host, run_hosts
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client.cli import main as client
from torchserve_client.gateway import Gateway

# Model -> a body, and how to read the answer, of which the value is known.
MODELS: dict[str, tuple[bytes, Callable[[Any], Any], Any]] = {
    "language-id": ("기준금리를 동결했다.".encode(), lambda body: body[0]["label"], "ko"),
    "batch2": (b'{"INPUT_1": [21]}', lambda body: body["OUTPUT_1"], [42]),
    MOBILENET: (photograph("chelsea"), lambda body: next(iter(body)), "Egyptian cat"),
}


class Site:
    """The nodes, each named as its model, and the gateway."""

    def __init__(self, gateway: Sandbox, nodes: list[Node], kills: dict[str, Callable[[], None]]) -> None:
        self.gateway, self.nodes, self.kills = gateway, nodes, kills

    def get(self, path: str) -> Any:
        return requests.get(f"{self.gateway.http}{path}", timeout=60).json()

    def post(self, model: str) -> requests.Response:
        return requests.post(f"{self.gateway.http}/predictions/{model}", MODELS[model][0], timeout=60)

    def assert_answers(self, *models: str) -> None:
        for model in models:
            answer = self.post(model)
            _, read, known = MODELS[model]
            assert (answer.status_code, read(answer.json())) == (200, known), model

    def assert_unavailable(self, model: str) -> None:
        """Fail unless its requests get 503 and learn when to come again, within seconds."""
        until(lambda: self.post(model).status_code == 503)
        answer = self.post(model)
        assert (answer.status_code, int(answer.headers["Retry-After"]) >= 1) == (503, True)
        until(lambda: requests.get(f"{self.gateway.http}/v2/models/{model}/ready", timeout=60).status_code != 200)

    def clients(self, models: list[str]) -> ExitStack:
        """Ask for other models until the block ends, and fail unless all are answered."""
        stack = ExitStack()
        for model in models:
            asking = Clients(f"{self.gateway.http}/predictions/{model}", 1, [MODELS[model][0]], interval_s=0.05)
            stack.callback(assert_all_answered, asking)
            stack.enter_context(asking)
            asking.wait_for(1)
        return stack


def kill(server: Server) -> None:
    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: server.pid() is None)


@pytest.fixture(scope="module")
def site(model_store: Path, archive: Callable[..., str]) -> Iterator[Site]:
    lean = ["language-id", "batch2"]
    files = [model_store / archive(name, engine="auto") for name in lean]
    with run_hosts(*files) as hosts, sandbox.run_server(model_store) as server:
        server.register(MOBILENET, f"{MOBILENET}.mar", workers=1, batch_size=4, max_batch_delay_ms=1)
        named: dict[str, Host] = dict(zip(lean, hosts, strict=True))
        nodes = [host.node(name) for name, host in named.items()] + [sandbox.make_node(server, MOBILENET)]
        kills = {name: host.kill for name, host in named.items()} | {MOBILENET: lambda: kill(server)}
        with sandbox.run_gateway(nodes) as gateway:
            made = Site(gateway, nodes, kills)
            until(lambda: all(made.get(f"/v2/models/{name}").get("inputs") for name in MODELS))
            yield made


def test_models_of_all_nodes_are_answered_described_listed_and_counted(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.assert_answers(*MODELS)
    listed = site.get("/v1/models")["data"]
    assert {each["id"] for each in listed} == {*MODELS}
    for name in MODELS:
        found = site.get(f"/v2/models/{name}")
        assert (found["name"], len(found["versions"]), bool(found["outputs"])) == (name, 1, True)

    def counted() -> dict[str, set[str]]:
        """Model -> the names of its handlers' series."""
        names: dict[str, set[str]] = {name: set() for name in MODELS}
        for name, node, model in re.findall(r'(handler_\w+)\{node="([^"]+)",ModelName="([^"]+)"', metrics()):
            assert node == model
            names[model].add(name)
        return names

    def metrics() -> str:
        return requests.get(site.gateway.metrics, timeout=60).text

    # The adaptive hosts count what the classic worker counts, and more.
    until(lambda: all(len(names) > 30 and names >= counted()[MOBILENET] for names in counted().values()))
    write_nodes(site.nodes, tmp_path / "nodes.json")
    assert client(["--nodes-file", str(tmp_path / "nodes.json"), "describe", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["node"]: (each["modelName"], each["workers"][0]["status"]) for each in found} == {
        name: (name, "READY") for name in MODELS
    }
    lean = site.nodes[0]
    assert client(["--url", lean.inference, "--management-url", lean.management, "describe", lean.name]) == 0
    shown = capsys.readouterr().out
    assert ("1 READY" in shown, "max_batch_size 1024" in shown) == (True, True)


def test_drained_node_takes_only_its_model_away(site: Site) -> None:
    control = Gateway(site.gateway.control)
    for name in MODELS:
        with site.clients([other for other in MODELS if other != name]):
            control.drain(name)
            site.assert_unavailable(name)
            control.drain(name, is_draining=False)
            until(lambda name=name: site.post(name).status_code == 200)  # type: ignore[misc]
    site.assert_answers(*MODELS)


def test_killed_node_takes_only_its_model_away(site: Site) -> None:
    alive = [*MODELS]
    for name in MODELS:
        alive.remove(name)
        with site.clients(alive):
            site.kills[name]()
            site.assert_unavailable(name)
        site.assert_answers(*alive)
