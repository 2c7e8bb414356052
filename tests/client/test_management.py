import json
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.client.script import Script, Step, failed, ok
from tests.tables import table
from torchserve_client import (
    Closed,
    DeadlineExceeded,
    InvalidPayload,
    Management,
    NoConnection,
    Nodes,
    NodesFailed,
    NotReady,
    Unreachable,
)


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


def test_registration_says_what_is_set_and_refuses_what_torchserve_would_never_serve() -> None:
    own, script = management(ok({}))
    sizes = {"initial_workers": 0, "batch_size": 1, "max_batch_delay_ms": 2}
    own.register("a.mar", model_name="a b", response_timeout_s=3, startup_timeout_s=4, is_known=True, **sizes)
    own.register("a.mar", initial_workers=1)
    queries = [dict(parse_qsl(urlsplit(request.url).query)) for request, _ in script.sent]
    least = {"url": "a.mar", "synchronous": "false"}
    times = {"response_timeout": "3", "startup_timeout": "4"}
    named = {"initial_workers": "0", "batch_size": "1", "max_batch_delay": "2", "model_name": "a b"}
    assert queries == [{**least, **times, **named}, {**least, "initial_workers": "1"}]
    for wrong in ({"initial_workers": -1}, {**sizes, "batch_size": 0}, {**sizes, "model_name": "a b"}):
        with pytest.raises(InvalidPayload):
            own.register("a.mar", **wrong)
    adaptive, script = management(ok([{"continuousBatching": True}]))
    for workers, most in ((-1, None), (2, 1), (2, None), (1, 2)):
        with pytest.raises(InvalidPayload):
            adaptive.scale("m", workers, most=most)
    adaptive.scale("m", 0, most=1)
    assert [request.method for request, _ in script.sent] == ["GET", "GET", "PUT"]


def test_nodes_are_those_of_the_file_with_their_tokens_and_logs(tmp_path: Path) -> None:
    file, key_file = tmp_path / "nodes.json", tmp_path / "key_file.json"
    key_file.write_text(json.dumps({api: {"key": api} for api in ("inference", "management")}))
    (tmp_path / "a" / "logs").mkdir(parents=True)
    addresses = {"management": "http://a:1", "inference": "http://a:2", "token_file": str(key_file)}
    file.write_text(json.dumps([{"name": "a", **addresses}, {"name": "b", "management": "http://b:1"}]))
    nodes, script = Nodes.read(file, transport=Script(ok({}))), Script(ok({"models": []}))
    for each in (*nodes.by_name.values(), *nodes.inference.values()):
        each._transport = script  # type: ignore[attr-defined]
    assert (nodes.logs, [*nodes.by_name], [*nodes.inference]) == ({"a": tmp_path / "a" / "logs"}, ["a", "b"], ["a"])
    nodes.each(lambda each: each.models())
    nodes.inference["a"].predict("m", "x")
    keys = [request.headers.get("Authorization") for request, _ in script.sent]
    assert keys == ["Bearer management", None, "Bearer inference"]
    nodes.close()
    for each in (*nodes.by_name.values(), *nodes.inference.values()):
        with pytest.raises(Closed):
            each._transport.send(script.sent[0][0], 1)  # type: ignore[attr-defined]
    for text in ("[]", "{}", "[1]", "["):
        file.write_text(text)
        with pytest.raises(InvalidPayload):
            Nodes.read(file)


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
