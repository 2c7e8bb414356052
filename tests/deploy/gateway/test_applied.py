"""Settings that cannot be applied, and files that Envoy rejects."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy import sandbox
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
from tests.deploy.gateway.conftest import Scene
from tests.deploy.gateway.envoy.harness import TIMEOUT_S, wait
from tests.deploy.gateway.envoy.stand_ins import StandIn, models_of
from tests.load.fake_server import run

pytestmark = pytest.mark.builds

KEYS = json.dumps([{"client": "a", "key": "k" * 16}]) + "\n"


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


def test_settings_that_cannot_be_applied_make_the_gateway_unready_and_shut_it_if_keys_are_new() -> None:
    node = StandIn("node-1", ["m/1.0"])
    with sandbox.run_gateway([node.node]) as gateway:

        def statuses() -> list[int]:
            asked = (("POST", "predictions/m"), ("POST", "v2/models/m/infer"), ("GET", "v2/health/ready"))
            return [requests.request(how, f"{gateway.http}/{what}", timeout=30).status_code for how, what in asked]

        wait(lambda: statuses() == [200, 200, 200])
        assert gateway.command("check").returncode == 0
        good = gateway.config.read_text()
        for text, mode, expected, words in (
            (f"{good}nonsense: 1\n", 0o600, [200, 200, 503], "nonsense"),
            (f"{good}keys: {KEYS}\n", 0o644, [503, 503, 503], "other users may read its keys: chmod 600"),
            (f"{good}keys: [", 0o600, [503, 503, 503], "not valid YAML"),
        ):
            # The mode first: a control process that reads in between would apply the keys of a private file.
            gateway.config.chmod(mode)
            gateway.config.write_text(text)
            wait(lambda: statuses() == expected)  # noqa: B023
            with ThreadPoolExecutor(2) as pool:
                for done in pool.map(gateway.command, ("check", "start")):
                    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (1, True, 1), done.stderr
            wait(lambda: words in (gateway.state_dir / "gateway.log").read_text())  # noqa: B023
            metrics = requests.get(f"{gateway.metrics}/gateway", timeout=TIMEOUT_S).text
            assert "gateway_settings_unapplied{} 1" in metrics
        gateway.config.write_text(good)
        wait(lambda: statuses() == [200, 200, 200])
        # Keys of a private file apply, and a change of the mode shuts no route.
        keys = gateway.config.with_name("keys.yaml")
        keys.touch(mode=0o600)
        keys.write_text(KEYS)
        gateway.config.write_text(f"{good}key_file: {keys}\n")
        wait(lambda: statuses() == [401, 401, 200])
        keys.chmod(0o644)
        wait(lambda: statuses() == [401, 401, 503])
    node.close()


def test_500_models_need_no_more_watches_than_10_and_a_revoked_key_is_refused() -> None:
    """The kernel allows 128 inotify instances by default."""
    node = StandIn("node-1", [f"m{number}" for number in range(10)])
    keys = [{"client": name, "key": name * 16} for name in "ab"]
    # Few health checks: all models of the stand-in have them.
    with sandbox.run_gateway([node.node], keys=keys, limits={"unresponsive_s": 600}) as gateway:
        session = requests.Session()

        def statuses(count: int, client: str = "a") -> set[int]:
            session.headers["Authorization"] = f"Bearer {client * 16}"
            urls = [f"{gateway.http}/predictions/m{number}" for number in range(count)]
            return {session.post(url, timeout=TIMEOUT_S).status_code for url in urls}

        def count_watches() -> int:
            folder = Path(f"/proc/{Envoy(gateway.state_dir).pid()}/fd")
            return sum(path.readlink().name == "anon_inode:inotify" for path in folder.iterdir())

        wait(lambda: statuses(10) == {200})
        before = count_watches()
        node.models = models_of([f"m{number}" for number in range(500)])
        wait(lambda: statuses(500) == {200}, 2 * TIMEOUT_S)
        assert (count_watches(), gateway.command("check").returncode) == (before, 0)
        gateway.configure(keys=keys[1:])
        wait(lambda: (statuses(1), statuses(1, "b")) == ({401}, {200}))
    node.close()
