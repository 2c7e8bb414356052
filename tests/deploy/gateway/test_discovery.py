"""What the nodes serve, found: nodes that come, go, are slow, or are no TorchServe."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from deploy.gateway import metadata as metadata_module
from deploy.gateway.discovery import Discovery
from deploy.gateway.state import Replica
from tests.deploy.gateway.stand_in import METADATA, StandIn, described, until

LOOK_S = 0.02


def run(scenario: Callable[[Discovery, StandIn, StandIn], Awaitable[None]]) -> None:
    """Play a scenario with two nodes, of which both are watched."""

    async def play() -> None:
        first, second = await StandIn("node-1").start(), await StandIn("node-2").start()
        discovery = Discovery(lambda: None, LOOK_S)
        discovery.watch([first.node, second.node])
        try:
            await scenario(discovery, first, second)
        finally:
            await discovery.close()
            await first.stop()
            await second.stop()

    asyncio.run(play())


def test_models_of_two_nodes_are_one_fleet_with_metadata() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier", workers=2, ready=1)]
        second.models["classifier"] = [described("classifier")]
        await until(lambda: discovery.models().get("classifier") and len(replicas(discovery)) == 2)
        await until(lambda: discovery.models()["classifier"].versions["1.0"].metadata)
        version = discovery.models()["classifier"].versions["1.0"]
        assert version.metadata == METADATA
        assert version.replicas == {"node-1": Replica(2, 1, 8, 20, True), "node-2": Replica(1, 1, 8, 20, True)}
        assert discovery.models()["classifier"].default == "1.0"

    run(scenario)


def test_models_registered_and_removed_appear_and_vanish() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        await discovery.first_look(20)
        assert discovery.models() == {}
        first.models["classifier"] = [described("classifier")]
        await until(lambda: list(discovery.models()) == ["classifier"])
        del first.models["classifier"]
        await until(lambda: discovery.models() == {})

    run(scenario)


def test_default_version_is_that_of_the_node() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier", "2.0"), described("classifier", "1.0")]
        await until(discovery.models)
        model = discovery.models()["classifier"]
        assert (list(model.versions), model.default) == (["1.0", "2.0"], "2.0")

    run(scenario)


def test_dead_node_keeps_what_it_served_with_nothing_ready() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier")]
        second.models["classifier"] = [described("classifier")]
        await until(lambda: len(replicas(discovery)) == 2)
        await first.stop()
        await until(lambda: not discovery.is_up("node-1"))
        assert {name: replica.ready_workers for name, replica in replicas(discovery).items()} == {
            "node-1": 0,
            "node-2": 1,
        }
        await first.start()
        await until(lambda: discovery.is_up("node-1") and replicas(discovery)["node-1"].ready_workers == 1)

    run(scenario)


def test_node_that_says_it_drains_is_draining_until_it_describes_its_models_again() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier")]
        await until(discovery.models)
        first.broken = lambda: web.json_response({"code": 503, "type": "Draining", "message": "."}, status=503)
        await until(lambda: discovery.draining == {"node-1"})
        # It answers what it has, and what still comes.
        assert discovery.is_up("node-1")
        assert replicas(discovery)["node-1"].ready_workers == 1
        # It has drained and ended: a node that drained is not one that failed.
        await first.stop()
        await until(lambda: not discovery.is_up("node-1"))
        assert discovery.draining == {"node-1"}
        first.broken = None
        await first.start()
        await until(lambda: discovery.is_up("node-1") and not discovery.draining)

    run(scenario)


def test_slow_node_delays_no_other() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        await discovery.first_look(20)
        first.delay_s = 3600
        second.models["classifier"] = [described("classifier")]
        await until(discovery.models)
        del second.models["classifier"]
        await until(lambda: not discovery.models())

    run(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(text="<html>"),
        lambda: web.json_response([]),
        lambda: web.json_response({"models": [{"name": "classifier"}]}),
        lambda: web.json_response({"models": None}),
        lambda: web.json_response({"code": 400, "message": "Token Authentication failed"}, status=400),
        lambda: web.Response(status=500),
    ],
    ids=["no JSON", "no object", "no names", "no list", "refused", "error"],
)
def test_node_that_answers_no_list_of_models_is_down_and_keeps_what_it_served(
    answer: Callable[[], web.Response],
) -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier")]
        await until(discovery.models)
        first.broken = answer
        await until(lambda: not discovery.is_up("node-1"))
        assert replicas(discovery)["node-1"].ready_workers == 0
        assert discovery.is_up("node-2")

    run(scenario)


def test_node_that_describes_no_model_is_down() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [{"modelName": "classifier", "modelVersion": "1.0"}]
        await until(lambda: discovery.is_up("node-2"))
        await discovery.first_look(20)
        assert not discovery.is_up("node-1")

    run(scenario)


def test_customized_metadata_is_never_asked_for() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier", "2.0"), described("classifier", "1.0")]
        await until(lambda: discovery.models() and discovery.models()["classifier"].versions["1.0"].metadata)
        assert not [path for path in first.asked if "customized" in path]

    run(scenario)


def test_metadata_is_asked_once_and_again_when_the_workers_are_others() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier")]
        await until(lambda: discovery.models() and discovery.models()["classifier"].versions["1.0"].metadata)
        looks = len(first.asked)
        await until(lambda: len(first.asked) > looks + 10)
        assert questions(first) == ["GET /predictions/classifier/1.0"]
        assert first.metadata is not None
        first.metadata["platform"] = "torchserve_torch"
        first.models["classifier"] = [described("classifier", start="T1")]
        await until(
            lambda: (discovery.models()["classifier"].versions["1.0"].metadata or {})["platform"] == "torchserve_torch"
        )
        assert len(questions(first)) == 2

    run(scenario)


def test_function_that_knows_its_outputs_once_it_has_run_is_asked_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "OUTPUTS_S", 0.1)

    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        assert first.metadata is not None
        first.metadata["outputs"] = []
        first.models["classifier"] = [described("classifier")]
        await until(lambda: len(questions(first)) >= 3)
        assert discovery.models()["classifier"].versions["1.0"].metadata == first.metadata
        first.metadata["outputs"] = METADATA["outputs"]
        await until(lambda: (discovery.models()["classifier"].versions["1.0"].metadata or {})["outputs"])
        asked, looks = len(questions(first)), len(first.asked)
        await until(lambda: len(first.asked) > looks + 10)
        assert len(questions(first)) == asked

    run(scenario)


def test_metadata_of_a_version_without_ready_workers_is_not_asked() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier", ready=0)]
        await until(discovery.models)
        looks = len(first.asked)
        await until(lambda: len(first.asked) > looks + 6)
        assert questions(first) == []

    run(scenario)


@pytest.mark.parametrize("said", [None, {"label": "cat"}, {"inputs": [{"name": 1}], "outputs": []}])
def test_handler_that_does_not_know_the_question_is_asked_again_later(
    said: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "REFUSED_S", 0.1)

    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.metadata = said
        first.models["classifier"] = [described("classifier")]
        await until(lambda: len(questions(first)) >= 2)
        assert discovery.models()["classifier"].versions["1.0"].metadata is None
        first.metadata = METADATA
        await until(lambda: discovery.models()["classifier"].versions["1.0"].metadata)

    run(scenario)


def test_node_taken_out_of_the_settings_is_forgotten() -> None:
    async def scenario(discovery: Discovery, first: StandIn, second: StandIn) -> None:
        first.models["classifier"] = [described("classifier")]
        await until(discovery.models)
        discovery.watch([second.node])
        assert discovery.models() == {}
        assert list(discovery.nodes) == ["node-2"]

    run(scenario)


def test_keys_of_a_node_are_read_anew_for_each_look(tmp_path: Path) -> None:
    keys = tmp_path / "key_file.json"
    keys.write_text("{")

    async def play() -> None:
        stand_in = await StandIn().start()
        node = stand_in.node
        discovery = Discovery(lambda: None, LOOK_S)
        discovery.watch([type(node)(**{**node.__dict__, "token_file": str(keys)})])
        try:
            await discovery.first_look(20)
            assert (discovery.is_up("node-1"), stand_in.asked) == (False, [])
            keys.write_text(json.dumps({"management": {"key": "m"}, "inference": {"key": "i"}}))
            await until(lambda: discovery.is_up("node-1"))
        finally:
            await discovery.close()
            await stand_in.stop()

    asyncio.run(play())


def replicas(discovery: Discovery) -> dict[str, Replica]:
    models = discovery.models()
    return dict(models["classifier"].versions["1.0"].replicas) if models else {}


def questions(node: StandIn) -> list[str]:
    return [path for path in node.asked if "/predictions/" in path]
