"""The wait for a drained node, by Envoy's count of its requests in flight."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.gateway import drain
from deploy.gateway.drain import MARK, drain_local, take_out, undrain_local, wait_idle
from deploy.models import ROOT
from deploy.run.machine import LocalNode
from deploy.run.server import Server as TorchServe
from tests.client.script import Server, Step, ok
from torchserve_client.gateway import Gateway
from torchserve_client.transport import Request


@pytest.mark.parametrize(
    ("counts", "unanswered", "reported"),
    [
        ([0], 0, ["the last response is sent"]),
        ([3, 1, 0], 0, ["3 requests are in flight; at most 0.5 s", "the last response is sent"]),
        # The wait for clients that keep sending ends after limit_s.
        ([2], 2, ["2 requests are in flight; at most 0.5 s", "2 requests have no response after 0.5 s"]),
    ],
    ids=["idle", "long answer", "sends on"],
)
def test_node_is_waited_for_until_nothing_is_in_flight_or_an_answer_may_take_no_longer(
    counts: list[int], unanswered: int, reported: list[str]
) -> None:
    words: list[str] = []
    left = iter(counts)
    began_s = time.monotonic()
    assert wait_idle(lambda: next(left, counts[-1]), words.append, notice_s=0.1, limit_s=0.5) == unanswered
    assert words == reported
    assert 0.1 <= time.monotonic() - began_s < 5


@pytest.fixture
def local(tmp_path: Path) -> LocalNode:
    return LocalNode("node-1", tmp_path, TorchServe(ROOT / "config.properties"))


@pytest.fixture
def shown(local: LocalNode, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The node's state in this machine's gateway, which drains it on request."""
    state: dict[str, Any] = {"name": "n", "is_draining": False, "is_routed": True, "in_flight": 0}
    state["management"] = local.server.settings.management_url

    def answer(request: Request) -> Step:
        if request.method == "PUT":
            state["is_draining"] = json.loads(request.body)["draining"]
        return ok([state])

    monkeypatch.setattr(drain, "MOMENT_S", 0.0)
    monkeypatch.setattr(drain, "connect", lambda _: Gateway("http://g", transport=Server(answer)))
    (local.folder / "gateway.yaml").touch()
    return state


def test_node_whose_count_is_not_known_is_not_idle(shown: dict[str, Any]) -> None:
    shown["in_flight"] = None
    assert not take_out(drain.connect(None), "n", 0.2)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_drained", [False, True])
def test_node_that_comes_back_undoes_its_own_drain_once_and_no_operators(
    local: LocalNode, shown: dict[str, Any], is_drained: bool
) -> None:
    config = local.folder / "gateway.yaml"
    shown["is_draining"] = is_drained
    drain_local(local, config)
    assert (shown["is_draining"], (local.folder / MARK).exists()) == (True, not is_drained)
    undrain_local(local, config)
    assert (shown["is_draining"], (local.folder / MARK).exists()) == (is_drained, False)
