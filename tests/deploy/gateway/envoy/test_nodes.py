"""Nodes that die, drain, come and go, and models that are not ready: no request is lost."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from deploy.gateway.envoy.clusters import RESETS
from deploy.gateway.settings import Canary
from deploy.gateway.state import ServedModel, ServedVersion
from tests.deploy.gateway.envoy.harness import PLACEMENT, SERVED, Gateway, wait
from tests.deploy.gateway.envoy.stand_ins import described, models_of

INFER, JSON = b"\x0a\x01m", {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def whole(gateway: Gateway) -> Iterator[None]:
    yield
    gateway.restore()


def test_what_a_node_that_dies_had_is_answered_by_another(gateway: Gateway) -> None:
    body = b"0123456789" * 300_000  # Envoy keeps 4 MiB
    for node in gateway.nodes:
        found = gateway.received("POST", "/predictions/m", data=body, headers={"X-Do": f"die-{node.name}"})
        assert found["by"] != node.name
        assert (found["bytes"], found["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
        answer, found = gateway.call("ModelInfer", INFER, x_do=f"die-{node.name}")
        assert (found["by"] != node.name, answer) == (True, INFER)


@pytest.mark.parametrize("status", [429, 500, 503, 507])
def test_rejections_and_deaths_of_workers_are_answers_however_many(gateway: Gateway, status: int) -> None:
    for node in gateway.nodes:
        node.answers["reject"] = (status, {**JSON, "Retry-After": "7"}, b"{}")
    before = gateway.attempts()
    for number in range(1, 13):
        answer = gateway.ask("POST", "/predictions/m", headers={"X-Do": "reject"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (status, "7")
        assert gateway.attempts() - before == number
    assert "failed_outlier_check" not in gateway.clusters()


@pytest.mark.parametrize("status", [404, 502])
def test_what_one_node_no_longer_has_is_asked_of_the_other(gateway: Gateway, status: int) -> None:
    first, second = gateway.nodes
    first.answers[f"{status}"] = lacking = (status, JSON, b"{}")
    assert gateway.served_by("/predictions/m", x_do=f"{status}") == {second.name}
    second.answers[f"{status}"] = lacking
    before = gateway.attempts()
    assert gateway.status("/predictions/m", x_do=f"{status}") == status
    assert gateway.attempts() - before <= gateway.settings.limits.attempts


def test_node_that_lacks_a_known_model_is_not_ready_yet(gateway: Gateway) -> None:
    """It has started again, and Envoy has not asked for its health since."""
    body = b'{\n  "code": 404,\n  "type": "ModelNotFoundException",\n  "message": "Model not found: m"\n}\n'
    for node in gateway.nodes:
        node.answers["new"] = (404, JSON, body)
    answer = gateway.ask("POST", "/predictions/m", headers={"X-Do": "new"})
    assert (answer.status_code, answer.headers["Retry-After"], answer.json()["code"]) == (503, "1", 503)
    assert gateway.rejected("ModelInfer", INFER, x_do="new")[0] == 14
    missing = dict.fromkeys(("node-0", "node-1"), replace(PLACEMENT, is_missing=True))
    model = ServedModel("m", {"1.0": ServedVersion("1.0", missing)}, "1.0")
    gateway.serve(replace(gateway.fleet(), registered={"m": model}))
    wait(lambda: gateway.status("/predictions/m") == 503)
    assert gateway.ask("POST", "/predictions/m").headers["Retry-After"] == "1"


def test_node_that_rejects_connections_is_left_out_until_it_is_ready_again(gateway: Gateway) -> None:
    """It rejects at once, so it has the fewest requests: it would be sent everything."""
    first, second = gateway.nodes

    def is_left_out() -> bool:
        # Its management port still says READY, which lets it in again: so requests keep coming.
        assert gateway.served_by("/predictions/m", 20) == {second.name}
        return "failed_outlier_check" in gateway.clusters()

    first.inference.close()
    try:
        wait(is_left_out)
    finally:
        first.inference.open()
    wait(lambda: first.name in gateway.served_by("/predictions/m"))


def test_response_that_breaks_off_is_not_retried_nor_is_its_node_ejected(gateway: Gateway) -> None:
    first, second = gateway.nodes
    gateway.serve(draining=frozenset({second.name}))
    wait(lambda: gateway.served_by("/predictions/m") == {first.name})

    def receive(_: int) -> None:
        answer = gateway.ask("POST", "/predictions/m", headers={"X-Do": "break"}, stream=True)
        with pytest.raises(requests.RequestException):
            list(answer.iter_content(chunk_size=None))

    before, times = gateway.attempts(), RESETS + 1
    with ThreadPoolExecutor(times) as threads:
        assert [*threads.map(receive, range(times))] == [None] * times
    assert gateway.attempts() == before + times
    assert "failed_outlier_check" not in gateway.clusters()
    assert gateway.status("/predictions/m") == 200


def test_readiness_is_each_models_and_each_versions_own(gateway: Gateway) -> None:
    first, second = gateway.nodes
    not_ready = {"m": [described("m", "1.0"), described("m", "2.0", ready=0)]}
    first.models = not_ready
    wait(lambda: gateway.served_by("/predictions/m/2.0") == {second.name})
    wait(lambda: gateway.served_by("/predictions/m/1.0") == {first.name, second.name})
    second.models = not_ready
    wait(lambda: gateway.status("/predictions/m/2.0") == 503)
    assert gateway.ask("POST", "/v2/models/m/versions/2/infer").json().keys() == {"error"}
    assert gateway.rejected("ModelInfer", b"\x0a\x01m\x12\x012")[0] == 14


def test_models_appear_and_vanish_without_a_restart(gateway: Gateway) -> None:
    pid = gateway.envoy.pid()
    for node in gateway.nodes:
        node.models = models_of([*SERVED, "new/1.0", "new/1"])
    files = ["clusters.json", "routes-http.json", "routes-grpc.json", "endpoints.json"]
    assert gateway.serve(models={**gateway.models, "new": ["1.0"]}) == files
    wait(lambda: gateway.status("/predictions/new") == 200)
    # A version whose short name is ambiguous is reached only by its full name.
    gateway.serve(models={**gateway.models, "new": ["1.0", "1"]})
    for version in ("1", "1.0"):
        path = f"/v2/models/new/versions/{version}/infer"
        wait(lambda: bool(gateway.ask("POST", path).json().get("path") == f"/predictions/new/{version}"))  # noqa: B023
    assert gateway.status("/predictions/new/1.0.0") == 404
    gateway.serve()
    wait(lambda: gateway.status("/predictions/new") == 404)
    assert (gateway.envoy.pid(), gateway.serve()) == (pid, [])


def test_canary_gets_its_share_and_those_with_its_header(gateway: Gateway) -> None:
    def paths(count: int, path: str = "/predictions/m", **headers: str) -> Counter[str]:
        return Counter(gateway.received("POST", path, headers=headers)["path"] for _ in range(count))

    new = {"X-Try": "new"}
    gateway.serve(canaries={"m": Canary("2.0", 25, ("X-Try", "new"))})
    wait(lambda: set(paths(1, **new)) == {"/predictions/m/2.0"})
    # Of 120 at 25 percent 30, with a standard deviation of 4.7.
    assert 6 < paths(120)["/predictions/m/2.0"] < 54
    assert paths(1, "/predictions/m/1.0", **new) == {"/predictions/m/1.0": 1}
    assert paths(1, "/v2/models/m/infer", **new) == {"/predictions/m/2.0": 1}
    assert gateway.call("ModelInfer", INFER, x_try="new")[1]["path"] == "/predictions/m/2.0"
    gateway.serve(canaries={"m": Canary("2.0", 100)})
    wait(lambda: set(paths(5)) == {"/predictions/m/2.0"})
    gateway.serve(canaries={"m": Canary("gone", 100)})
    wait(lambda: set(paths(5)) == {"/predictions/m"})


def test_nodes_get_their_own_tokens_and_nobody_elses(gateway: Gateway, tmp_path: Path) -> None:
    """The second node has none: it gets none either."""
    file, state, (one, other) = tmp_path / "key_file.json", gateway.fleet(), gateway.nodes
    state = replace(state, nodes={**state.nodes, one.name: replace(one.node, token_file=str(file))})

    def serve(number: int) -> None:
        # TorchServe writes another key at its restart.
        file.write_text(json.dumps({api: {"key": f"{api}-{number}"} for api in ("inference", "management")}))
        gateway.serve(state)

    def seen() -> dict[str, str | None]:
        sent = {"Authorization": "Bearer my-own"}
        found = [gateway.received("POST", "/predictions/m", headers=sent) for _ in range(10)]
        return {each["by"]: each["headers"].get("authorization") for each in found}

    serve(0)
    wait(lambda: seen() == {one.name: "Bearer inference-0", other.name: None})
    for node in gateway.nodes:
        node.checks.clear()
    wait(lambda: bool(one.checks) and one.checks[-1].get("authorization") == "Bearer management-0")
    wait(lambda: bool(other.checks) and "authorization" not in other.checks[-1])
    serve(1)
    wait(lambda: seen() == {one.name: "Bearer inference-1", other.name: None})
