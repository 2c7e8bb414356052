"""The process of a node over stand-ins of TorchServe and Envoy: its health, its checks, its drain and its end."""

import json
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, Mock, call

import pytest
from aiohttp import web

from deploy.gateway.envoy.process import NoAnswer
from deploy.models import ROOT
from deploy.nodes.container import healthcheck, node
from deploy.nodes.container.envoy import NodeStatus
from deploy.nodes.container.settings import NodeSettings
from deploy.nodes.run import ServerError
from tests.load.fake_server import serving
from tests.tables import table
from torchserve_client.errors import ManagementError


@pytest.fixture
def process(tmp_path: Path) -> Any:
    names = {"config": ROOT / "config.properties", "state_dir": tmp_path / "a" / "b", "notice_s": 3}
    made: Any = node.NodeProcess(NodeSettings.read({f"NODE_{name.upper()}": str(each) for name, each in names.items()}))
    made._envoy = Mock()
    made._local = SimpleNamespace(title="node", server=Mock(keys=tmp_path / "key_file.json"))
    return made


def test_node_drains_until_its_envoy_answers_that_nothing_is_in_flight(
    process: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([NoAnswer(), 2, NoAnswer(), 0, 0])
    process._envoy = Mock(**{"statistic.side_effect": answers})
    process._check, process._response_timeout_s = Mock(), 60.0
    monkeypatch.setattr("deploy.gateway.drain.sleep", slept := Mock())
    process._drain()
    # It reports at once that it drains, and edges have time to notice it.
    assert ([*answers], slept.mock_calls, process._check.call_count) == ([0], [call(3.0)], 5)
    assert capsys.readouterr().out.splitlines() == [
        "node: drains", "node: 1 requests are in flight; at most 60 s", "node: the last response is sent",
    ]  # fmt: skip


def test_health_is_that_of_all_models_and_stays_while_torchserve_is_busy(process: Any) -> None:
    def described(name: str, version: str) -> Any:
        if name in ("gone", "busy"):
            raise ManagementError("", 404 if name == "gone" else 0)
        workers = {"one": ["LOADING", "READY"], "none": ["LOADING"], "slow": ["READY"]}[name]
        more = {"one": {"responseTimeout": 7}, "none": {}, "slow": {"responseTimeout": 900}}[name]
        return {"modelName": name, "modelVersion": version, "workers": [{"status": each} for each in workers], **more}

    management = process._local.server.management
    management.describe.side_effect = described
    management.all_versions.return_value = [(name, "1.0") for name in ("slow", "one", "none", "gone")]
    process._poll([])
    assert (process._words, process._response_timeout_s) == ("none 1.0: no worker is READY", 900.0)
    process._poll([("none", "1.0")])
    assert process._response_timeout_s == 120.0  # TorchServe's default
    process._poll([("one", "1.0"), ("gone", "1.0")])
    healthy = process._words, process._response_timeout_s, process._answered_s
    assert healthy == ("ready", 7.0, ANY)
    with pytest.raises(ManagementError):
        process._poll([("none", "1.0"), ("busy", "1.0")])
    assert (process._words, process._response_timeout_s, process._answered_s) == healthy


def test_check_publishes_what_changes_and_ends_a_node_whose_torchserve_has_died_or_hangs(
    process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, now_s, server = list[NodeStatus](), [0.0], process._local.server
    monkeypatch.setattr("deploy.nodes.container.envoy.make_routes", lambda status: status)
    monkeypatch.setattr(node, "write_resources", lambda _, resources: published.extend(resources))
    monkeypatch.setattr(node, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    process._words, process._response_timeout_s, process._answered_s = "ready", 10.0, 100.0
    keys = {api: {"key": f"{api}'s"} for api in ("inference", "management")}
    tokens = {api: f"{api}'s" for api in keys}
    # TorchServe rewrites the file of keys while it runs.
    for text in ("", json.dumps(keys), "{"):
        server.keys.write_text(text)
        for _ in range(2):
            process._check()
    process._is_stopping.set()
    process._check()
    assert published == [NodeStatus("ready", False, {}), *(NodeStatus("ready", each, tokens) for each in (False, True))]
    assert process._envoy.keep.call_count == 7
    # It may start for as long as it needs.
    for process._is_up, now_s[0] in ((False, 1e6), (True, 120.0)):
        process._check()
    now_s[0] = 121.0
    with pytest.raises(ServerError, match=r"node: TorchServe has not answered for 21 s"):
        process._check()
    server.pid.return_value, server.describe_death.return_value = None, "it has died"
    with pytest.raises(ServerError, match="node: it has died"):
        process._check()
    server.clean_up.assert_called_once_with()


@table((("m.mar",), True, "verify"), ((), False, "verify"), ((), True, "start"))
def test_envoy_answers_before_torchserve_starts_and_the_models_are_polled_from_then_on(
    load_models: tuple[str, ...], has_model_api: bool, start: str, process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, polled = list[str](), threading.Event()

    def note(step: str, result: object = None) -> Mock:
        return Mock(side_effect=lambda *_: steps.append(step) or result)  # type: ignore[func-returns-value]

    def poll(models: list[Any]) -> None:
        assert models == ([("m", "1.0")] if start == "verify" else [])
        steps.append("poll") if not polled.is_set() and "poll" not in steps else polled.set()

    server = process._local.server
    server.settings, server.logs = SimpleNamespace(load_models=load_models, has_model_api=has_model_api), Path("logs")
    monkeypatch.setattr("subprocess.Popen", followed := Mock())
    monkeypatch.setattr(node, "make_folder", note("folder"))
    monkeypatch.setattr(node, "HEALTH_S", 0.001)
    monkeypatch.setattr("deploy.nodes.run.production.verify", note("verify", [("m", "1.0")]))
    monkeypatch.setattr(node, "start_node", note("start"))
    process._publish = Mock(side_effect=lambda status: steps.append(status.words))
    process._keep_envoy, process._check, process._poll = note("Envoy"), note("check"), poll
    try:
        process._start()
        assert polled.wait(30)
    finally:
        process._is_stopping.set()
    assert steps == ["folder", "starting", "Envoy", start, "poll", "check"]
    assert process._is_up and followed.call_args.args[0][-2:] == ["logs/model_log.log", "logs/ts_log.log"]


@table((["{0}/ok"], 0), (["{0}/no"], 1), (["{1}/", "{0}/ok"], 0), (["{1}/"], 1), (["{0}/no", "{0}/ok"], 1))
def test_container_is_healthy_if_the_first_address_that_answers_says_so(
    addresses: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.path == "/ok" else 503)

    with serving(answer, path="/{path:.*}") as url:
        shown = [each.format(url, "http://127.0.0.1:9") for each in addresses]
        monkeypatch.setenv("HEALTH_URL", " ".join(shown))
        assert healthcheck.main() == code
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("health: http://127.0.0.1:") and (said.endswith(": 200") is (code == 0))


@table(
    (None, nullcontext(), ["drain"]),
    (KeyboardInterrupt(), nullcontext(), []),
    (ServerError("why"), pytest.raises(ServerError), []),
)
def test_end_is_that_of_torchserve_before_envoys(failure: Any, outcome: Any, before: list[str], process: Any) -> None:
    ended = list[str]()

    def end(name: str) -> Mock:
        return Mock(side_effect=lambda *_: ended.append(name))

    process._start, process._drain, process._ending.install = Mock(side_effect=failure), end("drain"), Mock()
    process._local.server.stop, process._envoy.stop = end("TorchServe"), end("Envoy")
    process._logs = Mock(terminate=end("logs"))
    process._ending.interrupting = nullcontext
    process._ending.is_asked.set()
    with outcome:
        process.run()
    assert ended == [*before, "TorchServe", "Envoy", "logs"]
