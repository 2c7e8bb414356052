"""What a node's Envoy lets through and says itself: a real one, in front of a stand-in of TorchServe."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy.container import envoy
from deploy.container.envoy import INFERENCE, LISTENER, MANAGEMENT, METRICS, ROUTES_FILE, View
from deploy.container.settings import NodeSettings
from deploy.gateway.envoy.clusters import Tokens
from deploy.gateway.envoy.files import prepare, put
from deploy.gateway.envoy.process import Envoy
from deploy.sandbox import free_ports
from tests.deploy.gateway.envoy.stand_ins import StandIn
from tests.waiting import until

READY = View(is_ready=True, words="ready")


@dataclass
class Node:
    """A node's Envoy, and what stands in for its TorchServe."""

    envoy: Envoy
    settings: NodeSettings
    torchserve: StandIn
    session: requests.Session

    @property
    def url(self) -> str:
        return f"http://{self.settings.address}:{self.settings.port}"

    def ask(self, method: str, path: str, **arguments: Any) -> requests.Response:
        return self.session.request(method, self.url + path, timeout=30, **arguments)

    def show(self, view: View) -> None:
        """Say so from now on, and wait until Envoy does."""
        put(self.settings.envoy / ROUTES_FILE, [envoy.routes(view)])
        expected = 200 if view.is_ready and not view.is_draining else 503
        words = "draining" if view.is_draining else view.words
        until(lambda: (answer := self.ask("GET", "/ready")).status_code == expected and words in answer.text)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    run = tmp_path_factory.mktemp("node")
    settings = NodeSettings(config=Path("unused"), run=run, address="127.0.0.2", port=free_ports(1)[0])
    torchserve = StandIn("torchserve", {"m"})
    process = Envoy(settings.envoy, [LISTENER])
    prepare(settings.envoy)
    put(settings.envoy / ROUTES_FILE, [envoy.routes(View())])
    node = torchserve.node
    urls = {INFERENCE: node.inference, MANAGEMENT: node.management, METRICS: node.metrics}
    process.start_on(envoy.bootstrap(settings, urls))
    with requests.Session() as session:
        session.trust_env = False
        yield Node(process, settings, torchserve, session)
    torchserve.close()
    process.stop(10)


@pytest.fixture
def node(started: Node) -> Node:
    started.show(READY)
    return started


def test_node_says_that_it_starts_is_ready_or_drains_and_lives_all_the_while(node: Node) -> None:
    for view, status, words in (
        (View(), 503, "starting"),
        (replace(READY, is_ready=False, words="m 1.0: 0 of 1 workers READY"), 503, "m 1.0: 0 of 1 workers READY"),
        (READY, 200, "ready"),
        (replace(READY, is_draining=True), 503, "draining"),
    ):
        node.show(view)
        answer = node.ask("GET", "/ready")
        assert (answer.status_code, answer.text) == (status, f"{words}\n")
        assert node.ask("GET", "/live").status_code == 200


def test_node_that_drains_fails_the_edges_question_and_answers_predictions(node: Node) -> None:
    assert "READY" in node.ask("GET", "/models/m").text
    node.show(replace(READY, is_draining=True))
    for path in ("/models", "/models/m", "/models/m/all", "/models/m/1.0"):
        answer = node.ask("GET", path)
        assert (answer.status_code, answer.json()["type"]) == (503, "Draining")
    assert node.ask("POST", "/predictions/m", data=b"x").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/predictions/m/1.0", 200),
        ("POST", "/predictions/m?top_k=3", 200),
        ("PUT", "/predictions/m", 200),
        ("DELETE", "/predictions/m", 405),
        ("GET", "/models/m", 200),
        # On an adaptive model never answered.
        ("GET", "/models/m?customized=true", 404),
        ("GET", "/models/m?c%75stomized=true", 404),
        ("GET", "/predictions/../models/m?customized=true", 404),
        ("POST", "/models?url=http://example.org/evil.mar", 405),
        ("PUT", "/models/m?min_worker=0", 405),
        ("DELETE", "/models/m", 405),
        ("POST", "/metrics", 405),
        ("GET", "/ping", 404),
        ("GET", "/workflows/m", 404),
        ("GET", "/token?type=management", 404),
    ],
)
def test_only_predictions_and_descriptions_pass(node: Node, method: str, path: str, status: int) -> None:
    before = len(node.torchserve.checks)
    request = requests.Request(method, node.url + path).prepare()
    # As it stands: requests itself would take dots out of paths.
    request.url = node.url + path
    answer = node.session.send(request, timeout=30)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.json()["code"] == status
        assert len(node.torchserve.checks) == before


def test_tokens_are_put_in_for_whoever_asks_and_follow_the_file(node: Node) -> None:
    def seen(path: str) -> Any:
        told = node.ask("POST", path, data=b"x", headers={"Authorization": "Bearer of-a-client"}).json()
        return told["headers"].get("Authorization") or told["headers"].get("authorization")

    assert seen("/predictions/m") is None
    node.show(replace(READY, words="one", tokens=Tokens("first-%", "management")))
    assert seen("/predictions/m") == "Bearer first-%"
    node.ask("GET", "/models/m")
    assert node.torchserve.checks[-1]["authorization"] == "Bearer management"
    node.show(replace(READY, words="two", tokens=Tokens("second", "management")))
    assert seen("/predictions/m") == "Bearer second"


def test_worker_gets_no_header_that_envoy_makes(node: Node) -> None:
    told = node.ask("POST", "/predictions/m", data=b"x", headers={"X-Priority": "1"}).json()
    names = {name.lower() for name in told["headers"]}
    assert "x-priority" in names
    assert not {name for name in names if name.startswith(("x-envoy", "x-forwarded", "x-request"))}


def test_ready_and_live_are_answered_and_requests_counted_while_torchserve_answers_nothing(node: Node) -> None:
    node.torchserve.arrived.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.ask, "POST", "/predictions/m", headers={"X-Do": "wait"})
        assert node.torchserve.arrived.wait(60)
        assert [node.ask("GET", path).status_code for path in ("/ready", "/live")] == [200, 200]
        assert node.envoy.statistic(f"cluster.{INFERENCE}.upstream_rq_active") == 1
        node.torchserve.release.set()
        assert waiting.result(60).status_code == 200


def test_torchserve_that_resets_or_is_gone_is_a_502_which_edges_try_elsewhere(node: Node) -> None:
    answer = node.ask("POST", "/predictions/m", data=b"x", headers={"X-Do": "die"})
    assert (answer.status_code, answer.json()["type"]) == (502, "BadGateway")
    # The last test: its TorchServe does not come back.
    node.torchserve.inference.close()
    answer = node.ask("POST", "/predictions/m", data=b"x")
    assert (answer.status_code, answer.json()["type"]) == (502, "BadGateway")
    assert node.ask("GET", "/live").status_code == 200
