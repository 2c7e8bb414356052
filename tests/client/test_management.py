import pytest

from tests.client.script import Script, Step, failed, ok
from tests.tables import table
from torchserve_client import DeadlineExceeded, Management, NoConnection, Nodes, NodesFailed, NotReady, Unreachable


def management(*steps: Step) -> tuple[Management, Script]:
    script = Script(*steps)
    return Management("http://server:8081/", transport=script), script


def asked(script: Script) -> list[str]:
    return [f"{request.method} {request.url.removeprefix('http://server:8081')}" for request, _ in script.sent]


def test_versions_are_addressed_by_path() -> None:
    own, script = management(ok([{"modelVersion": "1.0"}, {"modelVersion": "2.0"}]))
    assert (own.versions("a/b"), own.describe("m", "2.0")) == (["1.0", "2.0"], {"modelVersion": "1.0"})
    own.set_default("m", "2.0")
    own.scale("m", 3, "2.0")
    own.unregister("m", "1.0")
    assert asked(script) == [
        "GET /models/a%2Fb/all",
        "GET /models/m/2.0",
        "PUT /models/m/2.0/set-default",
        # It checks whether the model is adaptive.
        "GET /models/m/2.0",
        "PUT /models/m/2.0?min_worker=3&max_worker=3",
        "DELETE /models/m/1.0",
    ]


@table(
    (1, ["READY"], True),
    (2, ["READY", "UNLOADING"], False),
    (2, ["READY", "READY"], True),
    (1, [], False),
    # Without a wanted worker none could respond.
    (0, [], False),
)
def test_ready_is_every_wanted_worker(minimum: int, statuses: list[str], is_ready: bool) -> None:
    own, _ = management(ok([{"minWorkers": minimum, "workers": [{"status": status} for status in statuses]}]))
    assert own.is_ready("m") is is_ready
    if not is_ready:
        with pytest.raises(NotReady, match="m: no ready worker after 0 s"):
            own.wait_ready("m", 0)


@pytest.mark.parametrize("step", [NoConnection("lost", was_sent=True), DeadlineExceeded("silence")])
def test_server_that_does_not_answer_is_unreachable_and_asked_once(step: Step) -> None:
    own, script = management(step)
    with pytest.raises(Unreachable, match="no TorchServe answers at http://server:8081"):
        own.unregister("m")
    assert len(script.sent) == 1


def test_every_node_is_called_and_the_error_says_which_did_not_do_it() -> None:
    steps: dict[str, Step] = {
        "a": ok({}),
        "b": NoConnection("refused", was_sent=False),
        "c": failed(500, "", "no room"),
        "d": ok({}),
    }
    scripts = {name: Script(step) for name, step in steps.items()}
    nodes = Nodes({name: Management(f"http://{name}:1", transport=script) for name, script in scripts.items()})
    with pytest.raises(NodesFailed) as raised:
        nodes.each(lambda management: management.scale("m", 1))
    assert raised.value.message == ("b: no TorchServe answers at http://b:1 (NoConnection); c: no room; done: a, d")
    assert (list(raised.value.errors), raised.value.done) == (["b", "c"], ["a", "d"])
    # The node after the two failed ones was called.
    assert len(scripts["d"].sent) == 1
