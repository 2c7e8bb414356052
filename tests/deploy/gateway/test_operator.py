"""Operators' decisions on the control port: drains, canaries, withdrawals; and the metrics port."""

from pathlib import Path

import requests

from deploy.gateway.settings import Canary
from tests.deploy.gateway.conftest import Scene
from tests.deploy.gateway.envoy.stand_ins import described
from tests.load.fake_server import run

OLD, NEW = described("classifier", "1.0"), described("classifier", "2.0")
MODEL, CANARY = "/control/models/classifier", "/control/canaries/classifier"


def test_draining_configures_envoy_and_outlives_a_restart(scene: Scene) -> None:
    scene.envoy.in_flight = {"classifier": {"node-1": 1}, "classifier/1.0": {"node-1": 2}}
    nodes = (scene.first, scene.second)
    first, second = ({"name": each.name, "management": each.node.management, "state": "up"} for each in nodes)
    expected = {**first, "is_draining": True, "is_routed": True, "in_flight": 3}
    assert scene.ask("PUT", "/control/nodes/node-1", {"draining": True}) == (200, expected)
    assert scene.fleet.draining == {"node-1"}
    scene.restart()
    assert scene.fleet.draining == {"node-1"}
    other = {**second, "is_draining": False, "is_routed": False, "in_flight": 0}
    assert scene.ask("GET", "/control/nodes")[1] == [expected, other]
    scene.ask("PUT", "/control/nodes/node-1", {"draining": False})
    assert scene.fleet.draining == set()
    scene.envoy.unhealthy = {"classifier/1.0"}
    assert [node["is_routed"] for node in scene.ask("GET", "/control/nodes")[1]] == [False, False]
    scene.envoy.is_running = False
    assert [node["in_flight"] for node in scene.ask("GET", "/control/nodes")[1]] == [None, None]


def test_canary_configures_envoy_and_outlives_a_restart(scene: Scene) -> None:
    scene.register(OLD, NEW, on_both=False)
    expected = {"version": "2.0", "percent": 5.0, "header": ["X-Canary", "yes"]}
    assert scene.ask("PUT", CANARY, {**expected, "version": "2"}) == (200, expected)
    canary = Canary("2.0", 5.0, ("X-Canary", "yes"))
    assert scene.fleet.canaries == {"classifier": canary}
    scene.restart()
    assert scene.ask("GET", CANARY) == (200, expected)
    assert scene.fleet.canaries == {"classifier": canary}
    # An unregistered version receives no requests.
    scene.register(OLD, on_both=False)
    assert scene.gateway.fleet.canaries == {}
    assert scene.ask("DELETE", CANARY) == (204, None)
    assert scene.ask("GET", CANARY) == (404, {"error": "no canary of classifier"})


def test_canary_of_the_settings_gives_way_to_the_control_ports_own(tmp_path: Path) -> None:
    with Scene(tmp_path, canaries={"classifier": Canary("2", 5.0)}) as scene:
        assert scene.gateway.fleet.canaries == {}
        scene.register(OLD, NEW, on_both=False)
        # "2" is the version "2.0", as it is for the control port.
        assert scene.gateway.fleet.canaries == {"classifier": Canary("2.0", 5.0)}
        asked = {"version": "2.0", "percent": 50.0, "header": None}
        assert scene.ask("PUT", CANARY, asked) == (200, asked)
        assert scene.gateway.fleet.canaries == {"classifier": Canary("2.0", 50.0)}
        scene.ask("DELETE", CANARY)
        assert scene.gateway.fleet.canaries == {"classifier": Canary("2.0", 5.0)}


def test_withdrawn_model_is_not_there_and_what_is_in_flight_for_it_is_counted(managed: Scene) -> None:
    of = {"node-1": 2, "node-2": 1}
    managed.envoy.in_flight = {"classifier": of, "classifier/1.0": {"node-2": 4}, "x": {"node-1": 9}}
    said = {"model": "classifier", "version": None, "is_withdrawn": True, "in_flight": 7}
    assert managed.ask("PUT", MODEL, {"withdrawn": True}) == (200, said)
    assert (managed.fleet.models, list(managed.fleet.registered)) == ({}, ["classifier"])
    assert managed.status("/v2/models/classifier") == 404
    assert managed.ask("POST", "/v2/repository/index") == (200, [])
    # Without workers it makes nothing unready.
    managed.register(described("classifier", ready=0), on_both=False)
    assert managed.gateway.fleet.is_ready
    # It outlives the control process, before the nodes have answered.
    managed.restart()
    assert managed.ask("GET", MODEL) == (200, said)
    managed.envoy.is_running = False
    assert managed.ask("GET", MODEL)[1]["in_flight"] is None
    managed.envoy.is_running, managed.envoy.in_flight = True, {}
    served = {**said, "is_withdrawn": False, "in_flight": 0}
    assert managed.ask("PUT", MODEL, {"withdrawn": False}) == (200, served)
    assert managed.status("/v2/models/classifier") == 200


def test_withdrawn_version_leaves_the_others(scene: Scene) -> None:
    scene.register(NEW, OLD)
    scene.ask("PUT", CANARY, {"version": "1.0", "percent": 5.0})
    assert scene.fleet.canaries
    # Requests without a version are the default's.
    of_versions = {"classifier/1.0": {"node-1": 3}, "classifier/2.0": {"node-2": 4}}
    scene.envoy.in_flight = {"classifier": {"node-1": 2}, **of_versions}
    said = {"model": "classifier", "version": "1.0", "is_withdrawn": True, "in_flight": 3}
    assert scene.ask("PUT", MODEL, {"version": "1", "withdrawn": True}) == (200, said)
    assert scene.ask("GET", f"{MODEL}?version=2.0")[1]["in_flight"] == 6
    assert (list(scene.fleet.models["classifier"].versions), scene.fleet.canaries) == (["2.0"], {})
    assert scene.ask("GET", "/v2/models/classifier")[1]["versions"] == ["2.0"]
    assert scene.status("/v2/models/classifier/versions/1") == 404
    assert (scene.ask("PUT", MODEL, {"version": "2", "withdrawn": True})[0], scene.fleet.models) == (200, {})


def test_default_version_alone_is_not_withdrawn_but_one_that_becomes_it_answers_nothing(scene: Scene) -> None:
    # The gateway polls before the decision.
    for node in (scene.first, scene.second):
        node.models["classifier"] = [OLD, NEW]
    status, document = scene.ask("PUT", MODEL, {"version": "1.0", "withdrawn": True})
    assert (status, "1.0 of classifier is its default version" in document["error"]) == (400, True)
    assert scene.gateway.fleet.withdrawn == set()
    assert scene.ask("PUT", MODEL, {"version": "2.0", "withdrawn": True})[0] == 200
    scene.register(NEW, OLD)
    paths = ("/v2/models/classifier", "/v2/models/classifier/ready", "/v2/models/classifier/versions/1/ready")
    assert [scene.status(path) for path in paths] == [404, 404, 200]


def test_withdrawn_model_that_is_registered_anew_is_served(scene: Scene) -> None:
    scene.ask("PUT", MODEL, {"withdrawn": True})
    scene.register(on_both=False)
    # One node still has it; an unreachable node keeps its models.
    assert scene.gateway.fleet.models == {}
    scene.second.close()
    scene.look()
    assert scene.gateway.fleet.withdrawn == {("classifier", "1.0")}
    scene.second.start()
    scene.register()
    assert scene.gateway.decisions.withdrawn == set()
    scene.register(OLD)
    assert list(scene.gateway.fleet.models) == ["classifier"]
    # A model that returns between two polls is restored by hand.
    scene.ask("PUT", MODEL, {"withdrawn": True})
    scene.first.models, scene.second.models = {}, {}
    assert scene.ask("PUT", MODEL, {"withdrawn": False})[0] == 404
    assert scene.gateway.decisions.withdrawn == set()


def test_decision_that_ends_leaves_those_about_others(scene: Scene) -> None:
    names = ("classifier", "other")
    for node in (scene.first, scene.second):
        node.models = {name: [described(name, "1.0"), described(name, "2.0")] for name in names}
        scene.ask("PUT", f"/control/nodes/{node.name}", {"draining": True})
    scene.look()
    for name in names:
        scene.ask("PUT", f"/control/canaries/{name}", {"version": "2.0", "percent": 5.0})
    scene.ask("DELETE", CANARY)
    scene.ask("PUT", "/control/nodes/node-1", {"draining": False})
    assert (list(scene.fleet.canaries), list(scene.fleet.draining)) == (["other"], ["node-2"])
    for name in names:
        scene.ask("PUT", f"/control/models/{name}", {"withdrawn": True})
    scene.ask("PUT", MODEL, {"withdrawn": False})
    assert scene.fleet.withdrawn == {("other", "1.0"), ("other", "2.0")}


def test_decision_that_cannot_be_or_comes_from_another_sites_page_is_rejected(scene: Scene) -> None:
    for path, body, status, words in (
        ("/control/nodes/x", b'{"draining": true}', 404, "no node x; known are node-1, node-2"),
        ("/control/nodes/node-1", b'{"draining": 1}', 400, "draining: Input should be a valid boolean"),
        ("/control/nodes/node-1", b"{", 400, "the body: Invalid JSON"),
        ("/control/models/x", b'{"withdrawn": true}', 404, "unknown model: 'x'"),
        (MODEL, b'{"withdrawn": true, "version": "7"}', 404, "version 7 is not found"),
        ("/control/canaries/x", b'{"version": "1", "percent": 5}', 404, "unknown model: 'x'"),
        (CANARY, b'{"version": "2", "percent": 5}', 404, "version 2 is not found"),
        (CANARY, b'{"version": "1", "percent": 5}', 400, "is its default version"),
        (CANARY, b'{"version": "1", "percent": 101}', 400, "percent: "),
    ):
        found, document = scene.ask("PUT", path, data=body)
        assert (found, words in document["error"]) == (status, True), (path, body, document)

    def status_of(method: str, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return scene.ask(method, "/control/nodes", headers=named)[0]

    # The owner of another name may let it resolve to this machine.
    assert [status_of("GET", Host=f"{host}:8003") for host in ("evil.example", "localhost", "[::1]")] == [403, 200, 200]
    assert status_of("POST", Origin="https://evil.example") == 403
    # Envoy forwards the client's Host.
    assert status_of("POST", Origin="https://evil.example", X_Forwarded_Host="gateway.example") == 403
    assert status_of("POST", Origin="https://gateway.example", X_Forwarded_Host="gateway.example") == 405


def test_metrics_are_those_of_envoy_of_every_node_and_of_what_the_gateway_saw(scene: Scene) -> None:
    scene.first.metrics = 'handler_items_total{ModelName="classifier",} 5\n'
    worker = scene.first.models["classifier"][0]["workers"][0]
    scene.first.models["classifier"][0]["jobQueueStatus"]["pendingRequests"] = 7
    # The worker dies: it has no process for a while, then another.
    for pid, status in ((100, "READY"), (-1, "UNLOADING"), (101, "READY")):
        worker.update(pid=pid, status=status)
        scene.look()
    scene.second.close()
    scene.look()
    run(scene.gateway.scrape())
    assert scene.ask("PUT", "/control/nodes/node-2", {"draining": True})[0] == 200
    of, own = '{{node="{}",model="classifier",version="1.0"}} {}', scene.metrics("/metrics/gateway")
    assert [line for line in own if not line.startswith("#")] == [
        "envoy_server_live{} 1",
        *('gateway_node_up{node="node-1"} 1', 'gateway_node_up{node="node-2"} 0'),
        *('gateway_node_draining{node="node-1"} 0', 'gateway_node_draining{node="node-2"} 1'),
        *(f"gateway_workers{of.format(node, 1)}" for node in ("node-1", "node-2")),
        *(f"gateway_workers_ready{of.format(*each)}" for each in (("node-1", 1), ("node-2", 0))),
        *(f"gateway_worker_restarts_total{of.format(*each)}" for each in (("node-1", 1), ("node-2", 0))),
        "gateway_settings_unapplied{} 0",
        "gateway_files_rejected{} 0",
        *(f"gateway_version_lost{of.format(node, 0)}" for node in ("node-1", "node-2")),
        "gateway_queued_requests" + of.format("node-1", 7),
    ]
    assert {*own, 'handler_items_total{node="node-1",ModelName="classifier",} 5'} <= {*scene.metrics()}
    # The metrics port answers nothing else, and the control port no metrics.
    assert requests.get(f"{scene.metrics_url}/control/nodes", timeout=30).status_code == 404
    assert scene.status("/metrics") == 404
