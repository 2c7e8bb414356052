"""Settings that cannot be applied, and files that Envoy rejects."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy.gateway.__main__ import main
from deploy.gateway.control import gateway as control
from deploy.gateway.envoy import files
from deploy.gateway.envoy.clusters import make_endpoints
from deploy.gateway.envoy.listeners import bootstrap
from deploy.gateway.envoy.process import Envoy
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import make_routes
from deploy.gateway.settings import GatewaySettings, Key, Ports
from deploy.gateway.state import Fleet
from deploy.gateway.supervisor import PROBLEM
from load import sandbox
from tests.deploy.gateway.conftest import Scene
from tests.deploy.gateway.envoy.harness import TIMEOUT_S, wait
from tests.deploy.gateway.envoy.stand_ins import METADATA, StandIn, models_of
from tests.load.fake_server import run
from tests.waiting import until

pytestmark = pytest.mark.builds

KEYS = {name: json.dumps([{"client": name, "key": name * 16}]) + "\n" for name in "ab"}


def rejected_routes(settings: GatewaySettings, fleet: Fleet, name: str) -> Resource:
    """Make routes of which Envoy rejects one: its regular expression is too large."""
    table = make_routes(settings, fleet, name)
    bad = {"match": {"safe_regex": {"regex": "a{500}"}}, "direct_response": {"status": 200}}
    return {**table, "virtual_hosts": [{**host, "routes": [bad, *host["routes"]]} for host in table["virtual_hosts"]]}


def rejected_endpoints(*arguments: Any) -> Resource:
    """Make endpoints that Envoy rejects: their address is a name."""
    document = json.dumps(make_endpoints(*arguments))
    found: Resource = json.loads(document.replace('"address": "127.0.0.1"', '"address": "x"'))
    return found


def test_configuration_that_envoy_rejects_is_reported_and_the_last_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    http, grpc = sandbox.free_ports(2)
    envoy, ports = Envoy(tmp_path), Ports(http=http, grpc=grpc)

    def statuses() -> list[int]:
        paths = ("predictions/classifier", "v2/health/ready", "ping")
        return [requests.get(f"http://127.0.0.1:{http}/{path}", timeout=TIMEOUT_S).status_code for path in paths]

    with Scene(tmp_path, envoy, ports=ports) as scene:
        envoy.keep(bootstrap(scene.settings))
        try:
            wait(lambda: statuses() == [200, 200, 200])
            run(scene.gateway.write())
            monkeypatch.setattr(control, "CONFIRM_S", 1.0)
            monkeypatch.setattr(files, "make_routes", rejected_routes)
            status, document = scene.ask("PUT", "/control/models/classifier", {"withdrawn": True})
            assert (status, "has no effect yet: Envoy has not accepted routes-" in document["error"]) == (503, True)
            assert scene.ask("PUT", "/control/models/classifier", {"withdrawn": False})[0] == 503
            wait(lambda: statuses() == [200, 503, 503])
            assert "gateway_files_rejected{} 2" in scene.metrics()
            # A restarted Envoy serves the configuration that was accepted last.
            pid = envoy.pid()
            envoy.stop(0)
            envoy.keep(bootstrap(scene.settings))
            wait(lambda: statuses() == [200, 503, 503])
            assert envoy.pid() != pid
            monkeypatch.undo()
            run(scene.gateway.write())
            wait(lambda: statuses() == [200, 200, 200])
            assert scene.ask("PUT", "/control/models/classifier", {"withdrawn": True})[0] == 200
            wait(lambda: statuses() == [404, 200, 200])
            assert scene.ask("PUT", "/control/models/classifier", {"withdrawn": False})[0] == 200
            wait(lambda: statuses() == [200, 200, 200])
            monkeypatch.setattr(control, "CONFIRM_S", 1.0)
            monkeypatch.setattr(files, "make_endpoints", rejected_endpoints)
            status, document = scene.ask("PUT", "/control/nodes/node-1", {"draining": True})
            assert (status, "Envoy has not accepted endpoints.json" in document["error"]) == (503, True)
            wait(lambda: statuses() == [200, 503, 503])
            (line,) = (each for each in caplog.messages if "Envoy has rejected endpoints.json: " in each)
            assert "malformed IP address: x" in line and "endpoints.json" in (tmp_path / PROBLEM).read_text()
            # Other keys apply all the same.
            scene.gateway.settings = replace(scene.settings, keys=(Key(client="a", key="k" * 16),))
            run(scene.gateway.write())
            wait(lambda: statuses()[0] == 401)
            scene.gateway.settings = scene.settings
            monkeypatch.undo()
            run(scene.gateway.write())
            wait(lambda: statuses() == [200, 200, 200])
        finally:
            envoy.stop(0)


def test_new_process_whose_keys_envoy_does_not_accept_is_shut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(Envoy):
        def versions(self) -> dict[str, str]:
            return dict.fromkeys(files.list_statistics(Fleet()), "former")

    monkeypatch.setattr(control, "CONFIRM_S", 0.0)
    with Scene(tmp_path, Deaf(tmp_path), keys=(Key(client="a", key="k" * 16),)) as scene:
        assert scene.gateway.fleet.is_shut


@pytest.fixture(scope="module")
def node() -> Iterator[StandIn]:
    made = StandIn("node-1", [f"m{number}" for number in range(10)])
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(node: StandIn) -> Iterator[sandbox.Sandbox]:
    # Few health checks: all models of the stand-in have them.
    with sandbox.run_gateway([node.node], limits={"unresponsive_s": 600}) as made:
        yield made


def test_60_models_need_no_more_watches_than_10(node: StandIn, running: sandbox.Sandbox) -> None:
    """The kernel allows 128 inotify instances by default."""

    def are_served(count: int) -> bool:
        urls = (f"{running.http}/predictions/m{number}" for number in reversed(range(count)))
        return all(requests.post(url, timeout=TIMEOUT_S).status_code == 200 for url in urls)

    def count_watches() -> int:
        found = 0
        for path in Path(f"/proc/{Envoy(running.state_dir).pid()}/fd").iterdir():
            with suppress(FileNotFoundError):  # a connection that has just closed
                found += path.readlink().name == "anon_inode:inotify"
        return found

    wait(lambda: are_served(10))
    before = count_watches()
    node.models = models_of([f"m{number}" for number in range(60)])
    wait(lambda: are_served(60))
    assert count_watches() == before


def test_model_that_is_ready_answers_the_next_request(node: StandIn, running: sandbox.Sandbox) -> None:
    """Envoy has its route, and has checked its node."""
    for number in (70, 71, 72):
        node.models = models_of([f"m{each}" for each in range(number + 1)])
        url = f"{running.http}/v2/models/m{number}"
        until(lambda: requests.get(f"{url}/ready", timeout=TIMEOUT_S).ok, every_s=0.001)  # noqa: B023
        assert requests.post(f"{running.http}/predictions/m{number}", timeout=TIMEOUT_S).status_code == 200


def test_settings_that_cannot_be_applied_shut_it(running: sandbox.Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    def statuses(key: str = "") -> list[int]:
        asked = (("POST", "predictions/m0"), ("POST", "v2/models/m0/infer"), ("GET", "v2/health/ready"))
        headers = {"Authorization": f"Bearer {key}"}
        answers = (
            requests.request(how, f"{running.http}/{what}", timeout=TIMEOUT_S, headers=headers) for how, what in asked
        )
        return [answer.status_code for answer in answers]

    def say(command: str) -> tuple[int, str]:
        files = ["--nodes-file", str(running.nodes_file), "--state-dir", str(running.state_dir)]
        return main([command, "--config", str(running.config), *files]), capsys.readouterr().err

    wait(lambda: statuses() == [200, 200, 200])
    assert say("check")[0] == 0
    good = running.config.read_text()
    for text, mode, expected, words in (
        (f"{good}nonsense: 1\n", 0o600, [200, 200, 503], "nonsense"),
        (f"{good}keys: {KEYS['a']}", 0o644, [503, 503, 503], "other users may read its keys: chmod 600"),
        (f"{good}keys: [", 0o600, [503, 503, 503], "not valid YAML"),
    ):
        # The mode first: a control process that reads in between would apply the keys of a private file.
        running.config.chmod(mode)
        running.config.write_text(text)
        wait(lambda: statuses() == expected)  # noqa: B023
        for command in ("check", "start"):
            code, error = say(command)
            assert (code, words in error, error.count("\n")) == (1, True, 1), error
        wait(lambda: words in (running.state_dir / "gateway.log").read_text())  # noqa: B023
        metrics = requests.get(f"{running.metrics}/gateway", timeout=TIMEOUT_S).text
        assert "gateway_settings_unapplied{} 1" in metrics
    running.config.write_text(good)
    wait(lambda: statuses() == [200, 200, 200])
    # Keys of a private file apply, a revoked one is rejected, and a change of the mode shuts no route.
    keys = running.config.with_name("keys.yaml")
    keys.touch(mode=0o600)
    keys.write_text(KEYS["a"])
    running.config.write_text(f"{good}key_file: {keys}\n")
    wait(lambda: statuses("a" * 16) == [200, 200, 200] and statuses() == [401, 401, 200])
    keys.write_text(KEYS["b"])
    wait(lambda: (statuses("a" * 16), statuses("b" * 16)) == ([401, 401, 200], [200, 200, 200]))
    keys.chmod(0o644)
    wait(lambda: statuses("b" * 16) == [200, 200, 503])


def test_requests_reach_only_nodes_of_one_vector_space() -> None:
    """Of the space that was first, whichever nodes have it later; of a named one; of all after the setting's end."""
    nodes = [StandIn(f"node-{number}", ["m/1.0"]) for number in (1, 2, 3)]
    for node, space in zip(nodes, ("f1-fp32", "f1-bf16", "f1-bf16"), strict=True):
        node.metadata["m"] = {**METADATA, "vector_space": space}
    first, *others = nodes
    with sandbox.run_gateway([first.node], vector_space="one") as running:

        def answerers(path: str = "m") -> set[str]:
            found = [requests.post(f"{running.http}/predictions/{path}", timeout=TIMEOUT_S) for _ in range(12)]
            return {each.json().get("by") for each in found}

        def configure(space: Any) -> None:
            running.configure(nodes=[asdict(each.node) for each in nodes], vector_space=space)

        def metrics() -> str:
            return requests.get(running.metrics, timeout=TIMEOUT_S).text

        wait(lambda: answerers() == {"node-1"})
        configure("one")
        label = 'model="m",version="1.0"'
        wait(lambda: all(f'gateway_node_up{{node="{each.name}"}} 1' in metrics() for each in nodes))
        wait(lambda: f"gateway_vector_spaces{{{label}}} 2" in metrics())
        out = [f'gateway_vector_space_left_out{{node="{each.name}",{label}}} {int(each in others)}' for each in nodes]
        wait(lambda: all(line in metrics() for line in out))
        assert (answerers(), answerers("m/1.0")) == ({"node-1"}, {"node-1"})
        told = "m 1.0: vectors of several spaces, only nodes of f1-fp32 get requests: "
        log = (running.state_dir / "control.log").read_text()
        assert log.count(told) == 1
        assert requests.get(f"{running.http}/v1/models/m", timeout=TIMEOUT_S).json()["vector_space"] == "f1-fp32"
        configure({"m": "f1-bf16"})
        wait(lambda: answerers() == {"node-2", "node-3"})
        configure({"m": "f2-fp32"})
        wait(lambda: answerers() == {None})
        configure(None)
        wait(lambda: answerers() == {"node-1", "node-2", "node-3"})
    for node in nodes:
        node.close()
