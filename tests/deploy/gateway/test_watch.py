"""The polls of the nodes' models: nodes that come, go, are slow, or are not a TorchServe."""

import errno
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import web

from deploy.gateway import watch as gateway_watch
from deploy.gateway.control import gateway as control
from deploy.gateway.control.gateway import KNOWN, Control
from deploy.gateway.state import Placement
from deploy.gateway.watch import DAMAGED, LATE, read_known
from deploy.nodes.run.node import Node
from tests.deploy.gateway.conftest import Scene
from tests.deploy.gateway.envoy.harness import wait
from tests.deploy.gateway.envoy.stand_ins import METADATA, described, models_of
from tests.load.fake_server import run


def ready(scene: Scene) -> dict[str, int]:
    scene.look()
    return {node: placement.ready_workers for node, placement in scene.version.placements.items()}


def is_up(scene: Scene) -> bool:
    return scene.gateway.watches["node-1"].is_up


def watch(scene: Scene, nodes: Sequence[Node]) -> None:
    async def configure() -> None:
        scene.gateway.configure(scene.settings, nodes)

    run(configure())


def test_models_of_all_nodes_are_one_fleet_and_a_slow_one_delays_no_other(scene: Scene) -> None:
    scene.first.models["classifier"] = [described("classifier", "2.0"), described("classifier", workers=2, ready=1)]
    scene.first.models["gone"] = []  # it is unregistered between the list and its description
    scene.look()
    model = scene.gateway.fleet.models["classifier"]
    expected = {"node-1": Placement(2, 1, 8, 20, is_default=False), "node-2": Placement(1, 1, 8, 20, is_default=True)}
    assert (list(model.versions), scene.version.placements) == (["1.0", "2.0"], expected)
    assert list(scene.gateway.fleet.models) == ["classifier"]
    # On an adaptive model this question would never be over.
    assert not [path for path in scene.first.asked if "customized" in path]
    scene.first.delay_s = 3600
    scene.second.models["other"] = [described("other")]
    run(scene.gateway.poll(0.5))
    assert list(scene.gateway.fleet.models) == ["classifier", "other"]
    watch(scene, [scene.second.node])
    assert (list(scene.version.placements), list(scene.gateway.fleet.nodes)) == (["node-2"], ["node-2"])


def test_node_that_says_it_drains_is_draining_until_it_describes_its_models_again(scene: Scene) -> None:
    scene.first.broken = lambda: web.json_response({"code": 503, "type": "Draining", "message": "."}, status=503)
    # It answers its requests, and makes nothing unready.
    assert ready(scene) == {"node-1": 1, "node-2": 1}
    nodes = scene.ask("GET", "/control/nodes")[1]
    assert [(node["state"], node["is_draining"]) for node in nodes] == [("up", True), ("up", False)]
    assert scene.gateway.fleet.is_ready
    # It has drained and ended: a node that drained is not one that failed.
    scene.first.close()
    scene.look()
    assert (is_up(scene), scene.gateway.fleet.draining) == (False, frozenset({"node-1"}))
    scene.first.broken = None
    scene.first.start()
    scene.look()
    assert (is_up(scene), scene.gateway.fleet.draining) == (True, frozenset())


def test_node_without_models_or_a_valid_key_is_down_and_keeps_what_it_served(scene: Scene, tmp_path: Path) -> None:
    rejected = '{"code": 400, "message": "Token Authentication failed"}'
    for text in ("<html>", '{"models": [{"name": "classifier"}]}', '{"models": null}', rejected):
        status = 400 if text == rejected else 200
        scene.first.broken = lambda status=status, text=text: web.Response(status=status, text=text)
        assert (text, ready(scene)) == (text, {"node-1": 0, "node-2": 1})
    scene.first.broken = None
    assert ready(scene) == {"node-1": 1, "node-2": 1}
    scene.first.models["classifier"] = [{"modelName": "classifier", "modelVersion": "1.0"}]
    assert ready(scene) == {"node-1": 0, "node-2": 1}
    keys = tmp_path / "key_file.json"
    keys.write_text("{")
    scene.first.models = models_of(["classifier/1.0"])
    watch(scene, [replace(scene.first.node, token_file=str(keys))])
    scene.look()
    assert not is_up(scene)
    keys.write_text(json.dumps({"management": {"key": "m"}, "inference": {"key": "i"}}))
    scene.look()
    assert is_up(scene) and scene.first.checks[-1]["authorization"] == "Bearer m"


def test_process_that_starts_anew_keeps_routes_until_it_has_seen_the_model_gone(scene: Scene) -> None:
    scene.shut()
    scene.first.broken = lambda: web.Response(status=500)
    scene.second.close()

    async def start() -> Control:
        gateway = Control(scene.settings, [scene.first.node, scene.second.node], scene.envoy, scene.folder)
        await gateway.start()
        return gateway

    gateway = run(start())
    placements = gateway.fleet.models["classifier"].versions["1.0"].placements
    assert {node: each.ready_workers for node, each in placements.items()} == {"node-1": 0, "node-2": 0}
    scene.first.broken, scene.first.models = None, {}
    run(gateway.poll())
    assert list(gateway.fleet.models["classifier"].versions["1.0"].placements) == ["node-2"]
    run(gateway.close())
    scene.second.start()
    scene.open()


def restart(scene: Scene, *models: str) -> None:
    for node in (scene.first, scene.second):
        node.close()
    scene.look()
    for node in (scene.first, scene.second):
        node.start()
        node.models = models_of(models)
    scene.look()


def test_model_that_is_not_back_after_a_restart_is_known_until_it_is_restored_or_unregistered(scene: Scene) -> None:
    def seen() -> tuple[list[str], bool, int]:
        scene.look()
        run(scene.gateway.write())
        fleet = scene.gateway.fleet
        return [*fleet.models], fleet.is_ready, scene.status("/v2/models/classifier/ready")

    restart(scene, "other/1.0")
    assert seen() == (["classifier", "other"], False, 503)
    known = read_known(scene.folder / KNOWN).values()
    assert all(each["classifier", "1.0"].is_missing and not each["other", "1.0"].is_missing for each in known)
    scene.first.models |= models_of(["classifier/1.0"])
    assert seen() == (["classifier", "other"], True, 200)
    # On a node that has not restarted it is removed; on the other node an operator unregisters it.
    scene.first.models = models_of(["other/1.0"])
    assert seen() == (["classifier", "other"], False, 503)
    assert scene.ask("PUT", "/control/models/classifier", {"withdrawn": True})[0] in (200, 404)
    assert seen() == (["other"], True, 404)
    assert scene.gateway.decisions.withdrawn == set()


def test_model_that_envoy_serves_is_ready_after_a_restart_on_a_full_disk(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "write_known", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    scene.restart()
    assert scene.status("/v2/models/classifier/ready") == 200


def test_what_a_node_no_longer_has_long_after_its_restart_is_forgotten_with_its_metadata(scene: Scene) -> None:
    restart(scene, "classifier/1.0")
    scene.look()
    watches = scene.gateway.watches.values()
    wait(lambda: all(each.metadata for each in watches))
    scene.register()
    assert not scene.gateway.fleet.registered and not any(each.metadata for each in watches)


def test_node_of_this_machine_says_which_versions_it_has_not_restored(scene: Scene, tmp_path: Path) -> None:
    """As after `make serve`: its folder has `served`, and restore.json with the versions that are not restored."""
    restore = tmp_path / "node" / "restore.json"
    restore.parent.mkdir()
    restore.with_name("served").touch()
    nodes = [replace(each.node, restore_file=str(restore)) for each in (scene.first, scene.second)]
    watch(scene, nodes)
    scene.look()
    restore.write_text(json.dumps([{"model": "classifier", "version": "1.0"}]))
    restart(scene)
    assert ([*scene.gateway.fleet.models], scene.gateway.fleet.is_ready) == (["classifier"], False)
    restore.write_text(json.dumps([{"model": "classifier", "version": "2.0"}]))
    scene.look()
    assert (scene.gateway.fleet.models, scene.gateway.fleet.is_ready) == ({}, True)
    # A gateway that has never seen it knows a version from the node's record, and waits for its workers, if any.
    recorded = {"model": "classifier", "version": "3.0", "batch_size": 8, "max_batch_delay_ms": 1, "is_default": True}
    for node in (scene.first, scene.second):
        node.models = models_of(["other/1.0"])
    for workers, is_ready in ((1, False), (0, True)):
        watch(scene, [])
        restore.write_text(json.dumps([{**recorded, "min_workers": workers}]))
        watch(scene, nodes)
        scene.look()
        found = scene.gateway.fleet.models["classifier"].versions
        assert ([*found], scene.gateway.fleet.is_ready) == (["3.0"], is_ready)


def test_version_that_is_lost_says_why_and_leaves_the_gateway_ready(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def seen() -> tuple[bool, int, str]:
        scene.look()
        status, document = scene.ask("GET", "/v2/models/classifier/ready")
        wait(lambda: scene.ask("GET", "/v2/models/other/ready") == (200, None))
        return scene.gateway.fleet.is_ready, status, document["error"].partition("is not at ready state")[2]

    restore = tmp_path / "node" / "restore.json"
    restore.parent.mkdir()
    restore.with_name("served").touch()
    watch(scene, [replace(each.node, restore_file=str(restore)) for each in (scene.first, scene.second)])
    scene.look()
    pending = {"model": "classifier", "version": "1.0"}
    restore.write_text(json.dumps([pending]))
    restart(scene, "other/1.0")
    assert seen() == (False, 503, "")
    restore.write_text(json.dumps([{**pending, "lost": "it is gone"}]))
    assert seen() == (True, 503, ": it is gone")
    assert 'gateway_version_lost{node="node-1",model="classifier",version="1.0"} 1' in scene.metrics()
    assert caplog.messages.count("node-1: classifier 1.0 is lost: it is gone") == 1
    # The next start of the node tries it again.
    restore.write_text(json.dumps([pending]))
    assert seen() == (False, 503, "")
    # After a power cut the record may not name it.
    restore.write_text("[null]")
    assert seen() == (True, 503, f": {DAMAGED}")
    # A node that reports nothing, or whose restoration was ended, is not waited for without end.
    restore.write_text(json.dumps([pending]))
    assert not seen()[0]
    monkeypatch.setattr(gateway_watch, "RESTORE_S", 0.0)
    assert seen() == (True, 503, f": {LATE}")
    scene.first.models |= models_of(["classifier/1.0"])
    scene.look()
    run(scene.gateway.write())
    assert (scene.gateway.fleet.is_ready, scene.status("/v2/models/classifier/ready")) == (True, 200)


def test_name_that_no_url_can_carry_is_not_served(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    odd = ["a/b", "a\\b", "..", "\ud800", "n\n", "x" * 1025, ""]
    for node in (scene.first, scene.second):
        node.models |= {name: [described(name)] for name in odd} | {"m": [described("m", "1/2"), described("m", "2")]}
    scene.look()
    assert [*scene.gateway.fleet.models] == ["classifier", "m"]
    run(scene.gateway.write())
    assert [*scene.fleet.models["m"].versions] == ["2"]
    scene.look()
    assert caplog.text.count("'a/b' is not served: its name must not be a dot or two") == 2


def questions(scene: Scene) -> list[str]:
    """Look; return the questions for metadata so far, of both nodes."""
    scene.look()
    return [path for node in (scene.first, scene.second) for path in node.asked if "/predictions/" in path]


def test_metadata_is_asked_once_and_again_of_other_workers_but_never_of_another_projects_handler(scene: Scene) -> None:
    assert scene.version.metadata == METADATA
    assert [questions(scene) for _ in range(3)] == [["GET /predictions/classifier/1.0"] * 2] * 3
    scene.second.models = {}
    scene.first.metadata["classifier"] = {**METADATA, "platform": "other"}
    scene.first.models["classifier"] = [described("classifier", start="T1")]
    wait(lambda: len(questions(scene)) == 3 and scene.version.metadata != METADATA)
    # One without READY workers is not asked.
    scene.first.models["classifier"] = [described("classifier", ready=0, start="T2")]
    assert [len(questions(scene)) for _ in range(3)] == [3] * 3
    scene.first.metadata["pets"] = {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}
    scene.first.models |= models_of(["pets/1.0"])
    asked, key = "GET /predictions/pets/1.0", ("pets", "1.0")
    wait(lambda: questions(scene).count(asked) == 1)
    wait(lambda: scene.gateway.watches["node-1"].models[key].is_foreign)
    # Neither with other workers, nor by another control process.
    scene.first.models["pets"] = [described("pets", start="T1")]
    assert questions(scene).count(asked) == 1
    run(scene.gateway.write())
    assert read_known(scene.folder / KNOWN)[scene.first.node][key].is_foreign


def test_vectors_of_several_spaces_on_the_nodes_of_a_version_are_reported_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for node, space in ((scene.first, "f1-fp32"), (scene.second, "f1-bf16")):
        node.metadata["classifier"] = {**METADATA, "vector_space": space}
        node.models["classifier"] = [described("classifier", start="T1")]
    wait(lambda: len({*ready(scene)} and scene.version.spaces) == 2)
    scene.look()
    assert 'gateway_vector_spaces{model="classifier",version="1.0"} 2' in scene.metrics()
    told = [each.getMessage() for each in caplog.records if "several spaces" in each.getMessage()]
    assert told == ["classifier 1.0: vectors of several spaces, do not mix them: node-1 f1-fp32, node-2 f1-bf16"]
    assert scene.ask("GET", "/v1/models/classifier")[1]["vector_space"] in ("f1-fp32", "f1-bf16")
