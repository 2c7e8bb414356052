"""What the nodes serve, found: nodes that come, go, are slow, or are no TorchServe."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from deploy.gateway import metadata as metadata_module
from deploy.gateway.discovery import Discovery
from deploy.gateway.state import Replica
from deploy.nodes.node import Node
from tests.deploy.gateway.envoy.harness import wait
from tests.deploy.gateway.envoy.stand_ins import METADATA, StandIn, described, run

LOOK_S = 0.02


class Watched:
    """A discovery that looks all the time, and the two nodes that it watches."""

    def __init__(self) -> None:
        async def made() -> Discovery:
            return Discovery(lambda: None, LOOK_S)

        self.first, self.second = StandIn("node-1"), StandIn("node-2")
        self.discovery = run(made())
        self.watch([self.first.node, self.second.node])
        run(self.discovery.first_look(20))

    def watch(self, nodes: Iterable[Node]) -> None:
        async def watch() -> None:
            self.discovery.watch(nodes)

        run(watch())

    def look(self, times: int) -> None:
        """Wait until the first node has been asked so many times more."""
        before = len(self.first.asked)
        wait(lambda: len(self.first.asked) > before + times)

    @property
    def replicas(self) -> dict[str, Replica]:
        models = self.discovery.models()
        return dict(models["classifier"].versions["1.0"].replicas) if models else {}

    @property
    def ready(self) -> dict[str, int]:
        return {node: replica.ready_workers for node, replica in self.replicas.items()}

    @property
    def metadata(self) -> Any:
        models = self.discovery.models()
        return models["classifier"].versions["1.0"].metadata if models else None

    @property
    def questions(self) -> list[str]:
        return [path for node in (self.first, self.second) for path in node.asked if "/predictions/" in path]


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    run(made.discovery.close())
    made.first.close()
    made.second.close()


def test_models_of_two_nodes_are_one_fleet_with_metadata(watched: Watched) -> None:
    assert watched.discovery.models() == {}
    watched.first.models["classifier"] = [described("classifier", "2.0"), described("classifier", workers=2, ready=1)]
    watched.second.models["classifier"] = [described("classifier")]
    wait(lambda: len(watched.replicas) == 2 and watched.metadata)
    model = watched.discovery.models()["classifier"]
    # Each node is asked for its own default version.
    expected = {"node-1": Replica(2, 1, 8, 20, False), "node-2": Replica(1, 1, 8, 20, True)}
    assert (list(model.versions), watched.replicas, watched.metadata) == (["1.0", "2.0"], expected, METADATA)
    watched.second.models = {}
    wait(lambda: list(watched.replicas) == ["node-1"])
    assert watched.discovery.models()["classifier"].default == "2.0"
    # On an adaptive model this question would never be over.
    assert not [path for path in watched.first.asked if "customized" in path]
    # A node that is no longer watched is forgotten.
    watched.watch([watched.second.node])
    assert (watched.discovery.models(), list(watched.discovery.nodes)) == ({}, ["node-2"])


def test_dead_node_keeps_what_it_served_with_nothing_ready(watched: Watched) -> None:
    for node in (watched.first, watched.second):
        node.models["classifier"] = [described("classifier")]
    wait(lambda: watched.ready == {"node-1": 1, "node-2": 1})
    watched.first.close()
    wait(lambda: watched.ready == {"node-1": 0, "node-2": 1})
    assert not watched.discovery.is_up("node-1")
    watched.first.start()
    wait(lambda: watched.discovery.is_up("node-1") and watched.ready["node-1"] == 1)


def test_node_that_says_it_drains_is_draining_until_it_describes_its_models_again(watched: Watched) -> None:
    watched.first.models["classifier"] = [described("classifier")]
    wait(lambda: bool(watched.replicas))
    watched.first.broken = lambda: web.json_response({"code": 503, "type": "Draining", "message": "."}, status=503)
    wait(lambda: watched.discovery.draining == {"node-1"})
    # It answers what it has, and what still comes.
    assert (watched.discovery.is_up("node-1"), watched.ready) == (True, {"node-1": 1})
    # It has drained and ended: a node that drained is not one that failed.
    watched.first.close()
    wait(lambda: not watched.discovery.is_up("node-1"))
    assert watched.discovery.draining == {"node-1"}
    watched.first.broken = None
    watched.first.start()
    wait(lambda: watched.discovery.is_up("node-1") and not watched.discovery.draining)


def test_slow_node_delays_no_other(watched: Watched) -> None:
    watched.first.delay_s = 3600
    watched.second.models["classifier"] = [described("classifier")]
    wait(lambda: bool(watched.discovery.models()))
    del watched.second.models["classifier"]
    wait(lambda: not watched.discovery.models())


def test_node_that_answers_no_list_or_description_of_models_is_down_and_keeps_what_it_served(watched: Watched) -> None:
    watched.first.models["classifier"] = [described("classifier")]
    wait(lambda: bool(watched.replicas))
    for status, text in (
        (200, "<html>"),
        (200, "[]"),
        (200, '{"models": [{"name": "classifier"}]}'),
        (200, '{"models": null}'),
        (400, '{"code": 400, "message": "Token Authentication failed"}'),
    ):
        watched.first.broken = lambda status=status, text=text: web.Response(status=status, text=text)
        wait(lambda: not watched.discovery.is_up("node-1"))
        assert watched.ready == {"node-1": 0}
        watched.first.broken = None
        wait(lambda: watched.discovery.is_up("node-1"))
    watched.first.models["classifier"] = [{"modelName": "classifier", "modelVersion": "1.0"}]
    wait(lambda: not watched.discovery.is_up("node-1"))
    assert watched.discovery.is_up("node-2")


def test_keys_of_a_node_are_read_anew_for_each_look(watched: Watched, tmp_path: Path) -> None:
    keys = tmp_path / "key_file.json"
    keys.write_text("{")
    watched.watch([replace(watched.first.node, token_file=str(keys))])
    wait(lambda: watched.discovery.watches["node-1"].is_up is False)
    keys.write_text(json.dumps({"management": {"key": "m"}, "inference": {"key": "i"}}))
    wait(lambda: watched.discovery.is_up("node-1"))
    assert watched.first.checks[-1]["authorization"] == "Bearer m"


# -- metadata -----------------------------------------------------------------------------------------------------


def test_metadata_is_asked_once_of_all_nodes_and_again_when_the_workers_are_others(watched: Watched) -> None:
    watched.second.models["classifier"] = [described("classifier")]
    wait(lambda: watched.metadata is not None)
    # Workers that were asked are not asked again for another node's sake.
    watched.first.models["classifier"] = [described("classifier")]
    wait(lambda: len(watched.replicas) == 2)
    watched.look(10)
    assert watched.questions == ["GET /predictions/classifier/1.0"]
    watched.first.metadata["classifier"] = watched.second.metadata["classifier"] = {**METADATA, "platform": "other"}
    watched.second.models["classifier"] = [described("classifier", start="T1")]
    wait(lambda: bool(watched.metadata["platform"] == "other"))
    assert len(watched.questions) == 2


def test_metadata_of_a_version_without_ready_workers_is_not_asked(watched: Watched) -> None:
    watched.first.models["classifier"] = [described("classifier", ready=0)]
    wait(lambda: bool(watched.replicas))
    watched.look(6)
    assert watched.questions == []


@pytest.mark.parametrize("said", [None, {"label": "cat"}, {"inputs": [{"name": 1}], "outputs": []}])
def test_handler_that_does_not_know_the_question_is_asked_again_later(
    watched: Watched, said: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "REFUSED_S", 0.1)
    watched.first.metadata["classifier"] = said
    watched.first.models["classifier"] = [described("classifier")]
    wait(lambda: len(watched.questions) >= 2)
    assert watched.metadata is None
    watched.first.metadata["classifier"] = METADATA
    wait(lambda: watched.metadata == METADATA)


def test_function_that_knows_its_outputs_once_it_has_run_is_asked_until_then(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "OUTPUTS_S", 0.1)
    watched.first.metadata["classifier"] = {**METADATA, "outputs": []}
    watched.first.models["classifier"] = [described("classifier")]
    wait(lambda: len(watched.questions) >= 3)
    assert watched.metadata == {**METADATA, "outputs": []}
    watched.first.metadata["classifier"] = METADATA
    wait(lambda: watched.metadata == METADATA)
    asked = len(watched.questions)
    watched.look(10)
    assert len(watched.questions) == asked
