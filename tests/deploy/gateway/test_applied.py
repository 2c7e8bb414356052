"""Settings that cannot be applied, and files that Envoy rejects."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from deploy import sandbox
from deploy.gateway.envoy import files
from deploy.gateway.envoy.listeners import bootstrap
from deploy.gateway.envoy.process import Envoy
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import make_routes
from deploy.gateway.settings import GatewaySettings, Key, Ports
from deploy.gateway.state import Fleet
from deploy.gateway.supervisor import PROBLEM
from tests.deploy.gateway.envoy.harness import TIMEOUT_S, wait
from tests.deploy.gateway.envoy.stand_ins import StandIn, models_of, run
from tests.deploy.gateway.scene import Scene

pytestmark = pytest.mark.builds

KEYS = json.dumps([{"client": "a", "key": "k" * 16}]) + "\n"


def rejected_routes(settings: GatewaySettings, fleet: Fleet, name: str) -> Resource:
    """Make routes of which Envoy rejects one: its regular expression is too large."""
    table = make_routes(settings, fleet, name)
    bad = {"match": {"safe_regex": {"regex": "a{500}"}}, "direct_response": {"status": 200}}
    return {**table, "virtual_hosts": [{**host, "routes": [bad, *host["routes"]]} for host in table["virtual_hosts"]]}


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
            # Envoy aborts without an inotify instance for each cluster; a new model needs two.
            monkeypatch.setattr(files, "_can_watch", lambda count: count <= files.RESERVE)
            scene.first.models |= models_of(["other/1.0"])
            run(scene.gateway.poll())
            assert scene.ask("PUT", "/control/models/classifier", {"withdrawn": False})[0] == 503
            wait(lambda: statuses() == [404, 503, 503])
            assert "raise fs.inotify.max_user_instances" in caplog.text
            assert "clusters.json" in (tmp_path / PROBLEM).read_text()
            # Other keys apply all the same.
            key = Key(client="a", key="k" * 16)
            scene.gateway.settings = replace(scene.settings, keys=(key,))
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
            paths = ("predictions/m", "v2/models/m/infer", "v2/health/ready")
            return [requests.post(f"{gateway.http}/{path}", timeout=TIMEOUT_S).status_code for path in paths[:2]] + [
                requests.get(f"{gateway.http}/{paths[2]}", timeout=TIMEOUT_S).status_code
            ]

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
            for command in ("check", "start"):
                done = gateway.command(command)
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
