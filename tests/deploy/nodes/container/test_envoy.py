"""The requests that a node's Envoy forwards and answers: a real Envoy, in front of a stand-in of TorchServe."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import requests

from deploy.gateway.envoy.files import make_folder, write_resources
from deploy.gateway.envoy.process import Envoy
from deploy.nodes.container import envoy
from deploy.nodes.container.envoy import LISTENER, ROUTES_FILE, NodeStatus
from deploy.nodes.container.settings import NodeSettings
from load.sandbox import free_ports
from tests.deploy.gateway.envoy.stand_ins import StandIn
from tests.tables import table
from tests.waiting import until

pytestmark = pytest.mark.builds

READY = NodeStatus(words="ready")


@dataclass
class Node:
    envoy: Envoy
    settings: NodeSettings
    torchserve: StandIn

    def ask(self, method: str, path: str, **arguments: Any) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False
            url = f"http://{self.settings.address}:{self.settings.port}{path}"
            request = requests.Request(method, url, **arguments).prepare()
            # As it stands: requests itself would take dots out of paths.
            request.url = url
            return session.send(request, timeout=60)

    def show(self, view: NodeStatus) -> None:
        write_resources(self.settings.envoy / ROUTES_FILE, [envoy.make_routes(view)])
        words = f"{'draining' if view.is_draining else view.words}\n"
        until(lambda: self.ask("GET", "/ready").text == words, every_s=0.01)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    given = {"NODE_CONFIG": "unused", "NODE_STATE_DIR": str(tmp_path_factory.mktemp("node"))}
    given |= {"NODE_ADDRESS": "127.0.0.2", "NODE_PORT": str(free_ports(1)[0]), "NODE_FORWARD_HEADERS": "X-Do"}
    settings, torchserve = NodeSettings.read(given), StandIn("torchserve", {"m"})
    process = Envoy(settings.envoy, [LISTENER])
    make_folder(settings.envoy)
    write_resources(settings.envoy / ROUTES_FILE, [envoy.make_routes(NodeStatus())])
    process.keep(envoy.bootstrap(settings, torchserve.node))
    yield Node(process, settings, torchserve)
    torchserve.close()
    process.stop(10)


@pytest.fixture
def node(running: Node) -> Node:
    running.show(READY)
    return running


def test_node_that_starts_or_drains_shows_edges_no_models_and_lives(node: Node) -> None:
    """The gateway would take the others for unregistered; predictions are answered."""
    for view, kind in ((NodeStatus(), "Starting"), (replace(READY, is_draining=True), "Draining")):
        node.show(view)
        assert [node.ask("GET", path).status_code for path in ("/ready", "/live")] == [503, 200]
        for path in ("/models?limit=1000", "/models/m", "/models/m/all"):
            answer = node.ask("GET", path)
            assert (answer.status_code, answer.json()["type"]) == (503, kind)
        assert node.ask("POST", "/predictions/m", data=b"x").status_code == 200
    node.show(READY)
    assert "READY" in node.ask("GET", "/models/m").text


@table(
    ("GET", "/predictions/m/1.0", 200),
    ("PUT", "/predictions/m?top_k=3", 200),
    *(("DELETE", path, 405) for path in ("/predictions/m", "/models/m")),
    # On an adaptive model never answered.
    *(("GET", f"{path}?customized=true", 404) for path in ("/models/m", "/predictions/../models/m")),
    ("POST", "/models?url=http://example.org/evil.mar", 405),
    ("GET", "/token?type=management", 404),
)
def test_only_predictions_and_descriptions_pass(method: str, path: str, status: int, node: Node) -> None:
    before, answer = len(node.torchserve.checks), node.ask(method, path)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert (answer.json()["code"], len(node.torchserve.checks)) == (status, before)


def test_tokens_follow_the_file_and_a_torchserve_that_resets_or_is_gone_is_a_502(node: Node) -> None:
    def headers(path: str) -> dict[str, str]:
        # An edge says which path it rewrote.
        ours = {"X-Priority": "1", "X-Envoy-Original-Path": "/v2/models/m/infer"}
        sent = {**ours, "Authorization": "Bearer of-a-client", "Expect": "x", "TE": "trailers", "X-Unknown": "1"}
        found = node.ask("POST", path, data=b"x", headers=sent).json()["headers"]
        return {name.lower(): value for name, value in found.items()}

    received = headers("/predictions/m")
    assert "authorization" not in received
    assert received.keys() == {"host", "content-length", "user-agent", "x-priority", "x-envoy-original-path"}
    assert node.ask("POST", "/predictions/m", headers={"X-Model-Metadata": "1"}).json()["name"] == "classifier"
    for word, key in (("one", "first-%"), ("two", "second")):
        node.show(replace(READY, words=word, tokens={"inference": key, "management": "management"}))
        # Envoy's threads do not change their routes at once.
        until(lambda: headers("/predictions/m").get("authorization") == f"Bearer {key}", every_s=0)  # noqa: B023
    node.ask("GET", "/models/m")
    assert node.torchserve.checks[-1]["authorization"] == "Bearer management"
    # The last test: its TorchServe does not come back.
    for orders in ({"X-Do": "die"}, {}):
        answer = node.ask("POST", "/predictions/m", data=b"x", headers=orders)
        assert (answer.status_code, answer.json()["type"]) == (502, "BadGateway")
        node.torchserve.inference.close()
    assert node.ask("GET", "/live").status_code == 200
