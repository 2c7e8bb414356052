"""Models that are taken off a gateway's routes while they are unregistered; the gateway's answers are scripted."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.http_server import serving
from tests.client.script import Server, Time, failed, ok
from torchserve_client import Gateway, ManagementError
from torchserve_client import gateway as gateway_module
from torchserve_client.gateway import MOMENT_S, in_front_of
from torchserve_client.transport import Incoming, Outgoing

PATH = "http://g/control/models/a%20b"


def state(in_flight: int | None, version: str | None = None, is_withdrawn: bool = True) -> Incoming:
    return ok({"model": "a b", "version": version, "is_withdrawn": is_withdrawn, "in_flight": in_flight})


class Scene:
    """A gateway whose requests in flight come down as they are listed, and what was said and asked."""

    def __init__(
        self, *in_flight: int | None, refuse: Callable[[str], Exception | Incoming | None] | None = None
    ) -> None:
        self.in_flight = list(in_flight)
        self.calls: list[str] = []
        self.said: list[str] = []
        self.time = Time()
        self.refuse = refuse
        self.gateway = Gateway("http://g", transport=Server(self._answer))

    def _answer(self, request: Outgoing) -> Incoming | Exception:
        asked: dict[str, Any] = json.loads(request.body) if request.body else {}
        words = {"withdrawn": {True: "withdraw", False: "restore"}}
        call = words["withdrawn"][asked["withdrawn"]] if asked else "look"
        version = asked.get("version") or request.url.partition("?version=")[2]
        assert request.url.startswith(PATH)
        self.calls.append(f"{call} {version}".strip())
        if self.refuse is not None and (refused := self.refuse(self.calls[-1])) is not None:
            return refused
        if call != "look":
            return state(None, version or None, call == "withdraw")
        return state(self.in_flight.pop(0) if len(self.in_flight) > 1 else self.in_flight[0], version or None)

    def during(self, *versions: str, timeout_s: float = 60.0) -> Any:
        return self.gateway.withdrawn(
            "a b", versions or (None,), timeout_s=timeout_s, say=self.said.append, sleep=self.time.sleep
        )


def test_model_is_unregistered_when_nothing_is_in_flight_and_forgotten_then() -> None:
    # Unknown while Envoy does not answer.
    scene = Scene(None, 3, 0)
    with scene.during():
        scene.calls.append("unregister")
    assert scene.calls == ["withdraw", "look", "look", "look", "unregister", "restore"]
    assert scene.time.slept[0] == MOMENT_S
    assert scene.said == ["a b: the gateway sends no new requests"]


@pytest.mark.parametrize("error", [ManagementError("no room"), KeyboardInterrupt()])
def test_what_cannot_be_unregistered_is_put_back(error: BaseException) -> None:
    scene = Scene(0)
    with pytest.raises(type(error)), scene.during("1.0", "2.0"):
        raise error
    assert scene.calls[:2] == ["withdraw 1.0", "withdraw 2.0"]
    assert scene.calls[-2:] == ["restore 1.0", "restore 2.0"]
    assert scene.said[-1] == "a b: version 2.0: the gateway sends requests again"


def test_gateway_that_does_not_know_the_model_changes_nothing() -> None:
    scene = Scene(0, refuse=lambda _: failed(404, "NotFound", "unknown"))
    with scene.during():
        scene.calls.append("unregister")
    assert (scene.calls, scene.said) == (["withdraw", "unregister"], [])


# -- which gateway ------------------------------------------------------------------------------------------------

ONE, TWO = "http://127.0.0.1:1", "http://127.0.0.1:2"


@pytest.mark.parametrize(
    ("theirs", "ours", "unnamed", "named"),
    [
        ([ONE, TWO], [ONE, TWO], True, True),
        ([ONE], ["http://localhost:1/", TWO], True, True),
        # Where it has more nodes, these go on serving.
        ([ONE, TWO], [ONE], False, False),
        # Names of its own, or another gateway altogether: only who names it knows.
        (["http://node:1"], [ONE], False, True),
        ([""], [ONE], False, True),
        ([], [ONE], False, True),
    ],
)
def test_gateway_is_the_one_in_front_of_these_nodes_alone(
    theirs: list[str], ours: list[str], unnamed: bool, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"name": "n", "state": "up", "is_draining": False, "is_routed": True, "in_flight": 0}
    with serving(lambda *_: [{**node, **({"management": url} if url else {})} for url in theirs]) as url:
        monkeypatch.setattr(gateway_module, "DEFAULT_URL", url)
        assert (in_front_of(ours, None) is not None, in_front_of(ours, url) is not None) == (unnamed, named)
