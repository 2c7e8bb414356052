"""Nodes that die, drain, come and go, and models that are not ready: nobody's request is lost."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from deploy.gateway.settings import Limits, Settings
from deploy.gateway.state import Canary, Fleet, without
from deploy.nodes.node import Node
from tests.deploy.gateway.envoy.harness import Gateway, fleet, wait
from tests.deploy.gateway.envoy.stand_ins import StandIn

SERVED = {"m", "m/1.0", "m/2.0"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(Path(tmp_path_factory.mktemp("nodes")), Settings(limits=Limits(unresponsive_s=2.0))) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def whole(gateway: Gateway) -> Iterator[None]:
    """After each test both nodes serve everything again."""
    yield
    for node in gateway.nodes:
        node.models = set(SERVED)
        node.release.set()
        node.arrived.clear()
    gateway.write(fleet(gateway.nodes, gateway.models))
    wait(gateway.is_serving)
    wait(lambda: {told(gateway) for _ in range(4)} == {node.name for node in gateway.nodes})


def told(gateway: Gateway, path: str = "/predictions/m", **headers: str) -> str:
    answer = gateway.told("POST", path, headers=headers)
    name: str = answer["by"]
    return name


def wait_for(gateway: Gateway, node: StandIn, threads: ThreadPoolExecutor) -> list[Future[requests.Response]]:
    """Send requests that wait, until one of them has come to this node."""
    for each in gateway.nodes:
        each.release.clear()
        each.arrived.clear()
    sent = []
    while not node.arrived.is_set():
        sent.append(threads.submit(requests.post, f"{gateway.url}/predictions/m", headers={"X-Do": "wait"}, timeout=60))
        node.arrived.wait(0.2)
    return sent


def test_requests_are_spread_over_the_nodes(gateway: Gateway) -> None:
    with ThreadPoolExecutor(8) as threads:
        counted = Counter(threads.map(lambda _: told(gateway), range(100)))
    assert set(counted) == {"node-0", "node-1"}


def test_what_a_node_that_dies_had_is_answered_by_another(gateway: Gateway) -> None:
    body = b"x" * (20 << 20)
    for node in gateway.nodes:
        answer = gateway.told("POST", "/predictions/m", data=body, headers={"X-Do": f"die-{node.name}"})
        assert (answer["by"] != node.name, answer["bytes"]) == (True, len(body))


def test_grpc_of_a_node_that_dies_is_answered_by_another(gateway: Gateway) -> None:
    for node in gateway.nodes:
        _, answer = gateway.call("ModelInfer", b"\x0a\x01m", x_do=f"die-{node.name}")
        assert answer["by"] != node.name


def test_what_ends_every_node_is_tried_no_more_than_told(gateway: Gateway) -> None:
    before = sum(sum(node.seen.values()) for node in gateway.nodes)
    for path, form in (("/predictions/m", "type"), ("/v2/models/m/infer", "error")):
        answer = gateway.ask("POST", path, headers={"X-Do": "die"})
        assert (answer.status_code, form in answer.json()) == (503, True)
    attempts = sum(sum(node.seen.values()) for node in gateway.nodes) - before
    assert attempts == 2 * gateway.settings.limits.attempts


@pytest.mark.parametrize("status", [429, 500, 503, 507])
def test_refusals_and_deaths_of_workers_are_answers(gateway: Gateway, status: int) -> None:
    for node in gateway.nodes:
        node.answers["refuse"] = (status, {"Content-Type": "application/json", "Retry-After": "7"}, b"{}")
    before = sum(sum(node.seen.values()) for node in gateway.nodes)
    answer = gateway.ask("POST", "/predictions/m", headers={"X-Do": "refuse"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (status, "7")
    assert sum(sum(node.seen.values()) for node in gateway.nodes) - before == 1


def test_what_one_node_no_longer_has_is_asked_of_the_other(gateway: Gateway) -> None:
    first, second = gateway.nodes
    lacking = (404, {"Content-Type": "application/json"}, b"{}")
    first.answers["lack"] = lacking
    second.answers.pop("lack", None)
    assert {told(gateway, **{"X-Do": "lack"}) for _ in range(8)} == {second.name}
    second.answers["lack"] = lacking
    before = sum(sum(node.seen.values()) for node in gateway.nodes)
    assert gateway.ask("POST", "/predictions/m", headers={"X-Do": "lack"}).status_code == 404
    assert sum(sum(node.seen.values()) for node in gateway.nodes) - before <= gateway.settings.limits.attempts


def withdrawn(gateway: Gateway, *versions: str, default_on: str = "") -> Fleet:
    """The fleet, with these versions of the model off the routes; they are the default on one node at most."""
    state = fleet(gateway.nodes, gateway.models)
    model = state.models["m"]
    for version in versions:
        each = model.versions[version]
        replicas = {node: replace(replica, is_default=node == default_on) for node, replica in each.replicas.items()}
        model = replace(model, versions={**model.versions, version: replace(each, replicas=replicas)})
    served, taken = without({"m": model}, {("m", version) for version in versions})
    return replace(state, models=served, withdrawn=taken)


def in_flight(gateway: Gateway) -> int:
    return sum(sum(nodes.values()) for nodes in gateway.envoy.requests().values())


def test_a_withdrawn_model_gets_nothing_new_and_answers_what_it_has(gateway: Gateway) -> None:
    with ThreadPoolExecutor(8) as threads:
        sent = wait_for(gateway, gateway.nodes[0], threads)
        wait(lambda: in_flight(gateway) == len(sent))
        changed = gateway.write(withdrawn(gateway, *gateway.models["m"]))
        # Its clusters stay as they were, with what they have in flight.
        assert changed == ["routes-http.json", "routes-grpc.json"]
        wait(lambda: gateway.ask("POST", "/predictions/m").status_code == 404)
        assert gateway.ask("POST", "/predictions/m/1.0").status_code == 404
        assert gateway.told("POST", "/v2/models/m/infer")["by"] == "control"
        assert in_flight(gateway) == len(sent)
        for node in gateway.nodes:
            node.release.set()
        assert {each.result().status_code for each in sent} == {200}
    wait(lambda: in_flight(gateway) == 0)


def test_a_withdrawn_version_leaves_the_others_and_takes_the_nodes_whose_default_it_is(gateway: Gateway) -> None:
    gateway.write(withdrawn(gateway, "2.0"))
    wait(lambda: gateway.ask("POST", "/predictions/m/2.0").status_code == 404)
    assert told(gateway, "/predictions/m/1.0")
    assert told(gateway)
    first, second = gateway.nodes
    gateway.write(withdrawn(gateway, "2.0", default_on=second.name))
    wait(lambda: {told(gateway) for _ in range(8)} == {first.name})
    # And by its own name the version that is served is still asked for there.
    wait(lambda: {told(gateway, "/predictions/m/1.0") for _ in range(8)} == {first.name, second.name})


def test_a_node_that_drains_gets_nothing_new_and_answers_what_it_has(gateway: Gateway) -> None:
    first, second = gateway.nodes
    with ThreadPoolExecutor(8) as threads:
        sent = wait_for(gateway, first, threads)
        assert gateway.envoy.traffic()[first.name].in_flight >= 1
        gateway.write(fleet(gateway.nodes, gateway.models, draining=frozenset({first.name})))
        wait(lambda: {told(gateway) for _ in range(8)} == {second.name})
        assert {name: each.is_routed for name, each in gateway.envoy.traffic().items()} == {
            first.name: False,
            second.name: True,
        }
        assert gateway.envoy.traffic()[first.name].in_flight >= 1
        for node in gateway.nodes:
            node.release.set()
        answers = [each.result(60) for each in sent]
    assert {answer.status_code for answer in answers} == {200}
    assert first.name in {answer.json()["by"] for answer in answers}
    wait(lambda: gateway.envoy.traffic()[first.name].in_flight == 0)


def test_nodes_come_and_go_under_load_without_a_lost_request(gateway: Gateway) -> None:
    third = StandIn("node-2", set(SERVED))
    stop = threading.Event()

    def load(_: int) -> Counter[tuple[int, str]]:
        counted: Counter[tuple[int, str]] = Counter()
        with requests.Session() as session:
            while not stop.is_set():
                answer = session.post(f"{gateway.url}/predictions/m", timeout=60)
                counted[answer.status_code, answer.json().get("by", "")] += 1
        return counted

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(load, number) for number in range(4)]
        try:
            gateway.write(fleet([*gateway.nodes, third], gateway.models))
            wait(lambda: third.seen.total() > 0)
            everybody = [*gateway.nodes, third]
            gateway.write(fleet(everybody, gateway.models, draining=frozenset({third.name})))
            wait(lambda: gateway.envoy.traffic()[third.name].in_flight == 0)
            gateway.write(fleet(gateway.nodes, gateway.models))
            third.close()
            wait(lambda: third.name not in gateway.envoy.traffic())
        finally:
            stop.set()
        counted = sum((each.result(60) for each in running), Counter[tuple[int, str]]())
    assert {status for status, _ in counted} == {200}
    assert counted[200, third.name] > 0


def test_readiness_is_each_models_and_each_versions_own(gateway: Gateway) -> None:
    first, second = gateway.nodes
    first.models = {"m", "m/1.0"}
    wait(lambda: {told(gateway, "/predictions/m/2.0") for _ in range(8)} == {second.name})
    assert {told(gateway, "/predictions/m/1.0") for _ in range(20)} == {first.name, second.name}
    second.models = {"m", "m/1.0"}
    wait(lambda: gateway.ask("POST", "/predictions/m/2.0").status_code == 503)
    assert gateway.ask("POST", "/v2/models/m/versions/2/infer").json().keys() == {"error"}
    assert gateway.refused("ModelInfer", b"\x0a\x01m\x12\x012")[0] == 14


def test_models_appear_and_vanish_without_a_restart(gateway: Gateway) -> None:
    pid = gateway.envoy.pid()
    for node in gateway.nodes:
        node.models = {*SERVED, "new", "new/1.0"}
    assert gateway.ask("POST", "/predictions/new").status_code == 404
    gateway.write(fleet(gateway.nodes, {**gateway.models, "new": ["1.0"]}))
    wait(lambda: gateway.ask("POST", "/predictions/new").status_code == 200)
    assert gateway.call("ModelInfer", b"\x0a\x03new")[1]["path"] == "/predictions/new"
    gateway.write(fleet(gateway.nodes, gateway.models))
    wait(lambda: gateway.ask("POST", "/predictions/new").status_code == 404)
    assert gateway.envoy.pid() == pid


def test_a_canary_gets_its_share_and_those_with_its_header(gateway: Gateway) -> None:
    def paths(count: int, **headers: str) -> Counter[str]:
        return Counter(gateway.told("POST", "/predictions/m", headers=headers)["path"] for _ in range(count))

    canary = Canary("2.0", 25, ("X-Try", "new"))
    gateway.write(fleet(gateway.nodes, gateway.models, canaries={"m": canary}))
    wait(lambda: set(paths(1, **{"X-Try": "new"})) == {"/predictions/m/2.0"})
    assert paths(20, **{"X-Try": "new"}) == {"/predictions/m/2.0": 20}
    # Of 400 at 25 percent, 100 with a standard deviation of 9.
    assert 50 < paths(400)["/predictions/m/2.0"] < 150
    assert gateway.told("POST", "/predictions/m/1.0", headers={"X-Try": "new"})["path"] == "/predictions/m/1.0"
    assert gateway.told("POST", "/v2/models/m/infer", headers={"X-Try": "new"})["path"] == "/predictions/m/2.0"
    assert gateway.call("ModelInfer", b"\x0a\x01m", x_try="new")[1]["path"] == "/predictions/m/2.0"
    gateway.write(fleet(gateway.nodes, gateway.models, canaries={"m": Canary("2.0", 100)}))
    wait(lambda: set(paths(1)) == {"/predictions/m/2.0"})
    gateway.write(fleet(gateway.nodes, gateway.models))
    wait(lambda: set(paths(5)) == {"/predictions/m"})


def test_nodes_get_their_own_tokens_and_nobody_elses(gateway: Gateway, tmp_path: Path) -> None:
    """The second node has none: it gets none either."""
    state = fleet(gateway.nodes, gateway.models)
    file = tmp_path / "key_file.json"
    file.write_text(json.dumps({"inference": {"key": "inference-0"}, "management": {"key": "management-0"}}))
    first, second = (state.nodes[node.name] for node in gateway.nodes)
    with_token: Node = replace(first, token_file=str(file))
    gateway.write(replace(state, nodes={first.name: with_token, second.name: second}))
    for node in gateway.nodes:
        node.checks.clear()

    def seen() -> dict[str, str | None]:
        answers = [
            gateway.told("POST", "/predictions/m", headers={"Authorization": "Bearer my-own"}) for _ in range(10)
        ]
        return {answer["by"]: answer["headers"].get("authorization") for answer in answers}

    wait(lambda: seen() == {first.name: "Bearer inference-0", second.name: None})
    one, other = gateway.nodes
    wait(lambda: bool(one.checks) and one.checks[-1].get("authorization") == "Bearer management-0")
    wait(lambda: bool(other.checks) and "authorization" not in other.checks[-1])
    # TorchServe writes another key when it starts anew.
    file.write_text(json.dumps({"inference": {"key": "inference-1"}, "management": {"key": "management-1"}}))
    gateway.write(replace(state, nodes={first.name: with_token, second.name: second}))
    wait(lambda: seen() == {first.name: "Bearer inference-1", second.name: None})


def test_nothing_is_written_where_nothing_changed(gateway: Gateway) -> None:
    assert gateway.write(fleet(gateway.nodes, gateway.models)) == []
