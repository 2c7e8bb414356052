"""The steps of a start, a watch and a restoration, and their order, over stand-ins of TorchServe and the gateway."""

import os
import zipfile
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from deploy.models import ROOT
from deploy.nodes.run import ServerError, development, lifecycle, production, serve
from deploy.nodes.run import __main__ as command
from deploy.nodes.run.lifecycle import start_node
from deploy.nodes.run.machine import Layout, LocalNode, find_gpus
from deploy.nodes.run.node import write_nodes
from deploy.nodes.run.processes import Ending
from deploy.nodes.run.production import NotAsConfigured, verify
from deploy.nodes.run.properties import ServerSettings, relocate_config
from deploy.nodes.run.restore import Record, restore
from load.sandbox import make_settings
from tests.deploy.nodes.run.test_machine import made
from tests.tables import table
from torchserve_client.errors import InvalidPayload, LoadFailed, ManagementError

PENDING = made("a", version="2.0")


@pytest.fixture
def node(tmp_path: Path) -> LocalNode:
    """A node whose server does not run; an archive `a.mar` of version 2.0 is in its model store."""
    with zipfile.ZipFile(tmp_path / "a.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", '{"model": {"modelName": "a", "modelVersion": "2.0"}}')
    (tmp_path / "logs").mkdir()
    places = {"logs": tmp_path / "logs", "directory": tmp_path, "temporary": tmp_path / "tmp"}
    server = Mock(**places, settings=SimpleNamespace(model_store="", has_model_api=True, has_tokens=False))
    server.pid.return_value = server.describe_death.return_value = None
    server.is_ending.return_value = False
    return LocalNode("node-1", tmp_path / "node-1", server)


@table((None, True), (7, True), (None, False))
def test_start_restores_what_is_pending_and_keeps_what_is_lost(
    pid: int | None, has_model_api: bool, node: LocalNode, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    server: Any = node.server
    server.settings.has_model_api, server.pid.return_value = has_model_api, pid
    Record(node).begin()
    Record(node).finish([PENDING, made("b")])
    outcomes = [("a is not restored", "why"), ("b is restored", "")]
    monkeypatch.setattr(lifecycle, "restore", Mock(return_value=outcomes))
    start_node(node)
    assert (server.start.called, server.authorize.called, server.stop.called) == (pid is None, pid is not None, False)
    assert capfd.readouterr().out == ("a is not restored\nb is restored\n" if has_model_api else "")
    assert Record(node).read_pending() == ([PENDING] if has_model_api else [])
    assert [each.lost for each in Record(node).read_pending()] == (["why"] if has_model_api else [])


def test_start_ends_what_still_ends_and_names_a_server_that_does_not_answer(node: LocalNode) -> None:
    server: Any = node.server
    server.is_ending.return_value, server.pid.return_value, server.wait_answer.return_value = True, 7, False
    with pytest.raises(ServerError, match="process 7 does not answer; run"):
        start_node(node)
    # It has ended while it was waited for.
    server.pid.side_effect = [7, None, None]
    start_node(node)
    assert (server.stop.call_count, server.start.call_count) == (2, 1)


def test_version_is_registered_and_scaled_and_the_default_as_it_was(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    management: Any = node.server.management
    management.versions.return_value = ["1.0"]
    management.describe.return_value = {"minWorkers": 1, "maxWorkers": 1, "modelVersion": "1.0"}
    monkeypatch.setattr("deploy.nodes.run.restore.wait_loaded", loaded := Mock())
    assert [*restore(node, [PENDING])] == [
        ("node-1: a 2.0: restored, batch_size 5, max_batch_delay 7 ms, workers 1", "")
    ]
    management.register.assert_called_once_with(
        "a.mar", batch_size=5, max_batch_delay_ms=7, initial_workers=1, model_name="a", response_timeout_s=60,
        startup_timeout_s=90, is_known=True,
    )  # fmt: skip
    management.scale.assert_called_once_with("a", 1, "2.0", most=4)
    assert (loaded.call_args.args[1], loaded.call_args.args[3]) == ("a", "2.0")
    # One that is registered already, with its workers, is left as it is; the first that was registered is the default.
    management.versions.return_value, management.describe.return_value["maxWorkers"] = ["2.0"], 4
    for is_default, now in ((True, "2.0"), (True, "1.0"), (False, "1.0")):
        management.describe.return_value["modelVersion"] = now
        assert [lost for _, lost in restore(node, [replace(PENDING, is_default=is_default)])] == [""]
    assert management.set_default.mock_calls == [call("a", "2.0")]
    loaded.side_effect = LoadFailed("no memory")
    assert [*restore(node, [PENDING])] == [("node-1: a 2.0 is not restored: no memory", "")]
    assert (management.register.call_count, management.scale.call_count) == (1, 1)


@table(
    ({"archive": "b.mar"}, None, "b.mar is missing from the model store"),
    ({"version": "3.0"}, None, "a.mar contains version 2.0 now"),
    ({}, ManagementError("taken", 409), "taken"),
    ({}, InvalidPayload("too few"), "too few"),
)
def test_version_that_cannot_be_registered_is_lost(more: Any, error: Any, why: str, node: LocalNode) -> None:
    management: Any = node.server.management
    management.versions.return_value, management.register.side_effect = [], error
    wanted = replace(PENDING, **more)
    assert [*restore(node, [wanted])] == [(f"node-1: a {wanted.version} is not restored: {why}", why)]
    management.scale.assert_not_called()
    management.versions.side_effect = ManagementError("nothing answers", 0)
    if error is not None:  # the whole start fails, and restores them another time
        with pytest.raises(ManagementError, match="nothing answers"):
            [*restore(node, [wanted])]


NAMED: dict[str, Any] = {"m": {"1.0": {}}, "n-untrained": {"1-untrained": {}}}
SERVED = [("m", "1.0"), ("n-untrained", "1-untrained")]


def test_production_waits_for_what_is_configured_and_says_what_is_not_as_configured(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server: Any = node.server
    settings = ServerSettings(load_models=("m.mar", "n=a.mar"), models=NAMED, model_store="")
    server.settings, server.config = settings, Path("config.properties")
    (server.directory / "m.mar").touch()
    (server.logs / "ts_log.log").write_text("1 WARN x - other\n2 WARN x - Failed to load model: n.mar\n3\n")
    monkeypatch.setattr(production, "start_node", started := Mock())
    monkeypatch.setattr(production, "wait_loaded", loaded := Mock())
    server.management.all_versions.return_value = SERVED
    assert verify(node) == SERVED
    assert [(each.args[1], each.args[3]) for each in loaded.mock_calls] == SERVED
    assert "n-untrained: RANDOM weights" in capfd.readouterr().err
    server.management.all_versions.return_value = [*SERVED, ("m", "2.0")]
    with pytest.raises(NotAsConfigured, match=r"load_models registered m 2.0, and models= has no entry for it"):
        verify(node)
    # An operator may have registered it, and a model may have no workers.
    server.settings = replace(settings, has_model_api=True)
    server.management.describe.side_effect = lambda name, _: {"minWorkers": int(name == "m")}
    loaded.reset_mock()
    assert (verify(node), [each.args[1] for each in loaded.mock_calls]) == (SERVED, ["m"])
    server.management.all_versions.return_value = SERVED[:1]
    with pytest.raises(NotAsConfigured, match=r"names n-untrained, not registered; Failed to load model: n\.mar$"):
        verify(node)
    server.management.all_versions.return_value, server.key.return_value = SERVED, None
    with pytest.raises(ServerError, match="has no key: calls need one"):
        verify(node)
    started.reset_mock()
    monkeypatch.setattr(production, "excess_memory", lambda _: "too much")
    with pytest.raises(NotAsConfigured, match=r"config\.properties: too much"):
        verify(node)
    started.assert_not_called()


@table(
    (lambda ending: ending.is_asked.set(), ["start", "undrain", "watch", "drain", "stop False"]),
    # It has died, which its supervisor notices.
    (lambda _: None, ["start", "undrain", "watch"]),
    (None, ["start", "stop False"]),
)
def test_watched_node_is_drained_before_it_is_stopped(
    watch: Callable[[Ending], None] | None, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, ending, own = list[str](), Ending(), tmp_path / "gateway.yaml"

    def started(_: LocalNode) -> None:
        (tmp_path / "nodes.json").unlink()  # as a stop for which it waited
        steps.append("start")
        if watch is None:
            raise KeyboardInterrupt

    def watched(local: LocalNode, is_asked: object) -> None:
        assert (local.name, is_asked, watch is not None) == ("node-1", ending.is_asked, True)
        steps.append("watch")
        watch(ending)  # type: ignore[misc]

    monkeypatch.setattr(serve, "start_one", started)
    monkeypatch.setattr(command, "watch_node", watched)
    monkeypatch.setattr(command, "stop_node", lambda _, *, is_for_good: steps.append(f"stop {is_for_good}"))
    for name in ("drain", "undrain"):
        gateway = Mock(side_effect=lambda _, config, name=name: steps.append(name if config == own else ""))
        monkeypatch.setattr(f"deploy.gateway.drain.{name}_local", gateway)
    options = Namespace(
        config=str(ROOT / "config.properties"), node_count=None, state_dir=tmp_path, node=None, ending=ending,
        gateway_config=own,
    )  # fmt: skip
    command.run(options)
    assert (steps, (tmp_path / "nodes.json").exists()) == (expected, watch is not None)


def test_start_that_has_waited_for_a_stop_lists_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, config = tmp_path / "nodes.json", str(ROOT / "config.properties")
    monkeypatch.setattr(serve, "start", lambda *_, **_more: listed.unlink())
    command.start(Namespace(config=config, node_count=None, state_dir=tmp_path, gateway_config=tmp_path))
    assert listed.exists()


def test_failed_start_names_the_deaths_and_a_taken_port_is_said_before_anything_is_built(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = node.server
    monkeypatch.setattr(development, "start", built := Mock(side_effect=OSError("no disk")))
    server.find_obstacle.return_value = "a port is taken"
    with pytest.raises(ServerError, match=r"^TorchServe: a port is taken$"):
        serve.start([node])
    built.assert_not_called()
    # Its own ports are taken by itself, or until its workers have ended.
    for server.pid.return_value, server.describe_death.return_value in ((7, None), (None, "killed")):
        with pytest.raises(
            ServerError, match=f"^no disk{'; TorchServe: killed' if server.pid.return_value is None else ''}$"
        ):
            serve.start([node], is_own=True)
    assert built.mock_calls == [call([node], is_own=True)] * 2


@table(
    (None, False, {None: 1, 4: 4}),
    ((7, "own"), False, {None: 1, 1: 1, 2: r"a single TorchServe already uses the whole machine \(pid 7\)"}),
    ((7, "other"), False, {None: r"TorchServe is already running with \S*other \(pid 7\)"}),
    (None, True, {None: 3, 3: 3, 1: "3 nodes are already running", 2: "3 nodes are already running"}),
)
def test_layout_is_that_which_runs_or_the_one_that_is_asked_for(
    running: tuple[int, str] | None, has_nodes: bool, expected: dict[Any, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    pid, config = running or (None, None)
    (own := tmp_path / "own").touch()
    single = Mock(pid=lambda: pid, running_config=lambda: config and (tmp_path / config).resolve())
    servers = [single, *(Mock(pid=lambda pid=pid: pid) for pid in ((None, 8) if has_nodes else (None, None)))]
    monkeypatch.setattr(serve, "all_nodes", lambda *_: [SimpleNamespace(server=each) for each in servers])
    Layout(own, 3).write(tmp_path)
    for nodes, found in expected.items():
        outcome = pytest.raises(ServerError, match=found) if isinstance(found, str) else nullcontext()
        with outcome:
            assert serve.choose_layout(own, nodes, tmp_path).nodes == found
    if has_nodes:
        with pytest.raises(ServerError, match=r"3 nodes are already running with .*own"):
            serve.choose_layout(tmp_path / "other", None, tmp_path)


def test_stop_without_a_node_says_so_and_forgets_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = relocate_config((ROOT / "config.properties").read_text(), ROOT, make_settings(tmp_path))
    (config := tmp_path / "config.properties").write_text(text)
    write_nodes([], nodes := tmp_path / "a" / "b" / "nodes.json")
    command.status(Namespace(config=str(config), state_dir=nodes.parent))
    serve.stop(config, nodes.parent)
    assert (capsys.readouterr().out, nodes.exists()) == ("TorchServe: not running\n" * 2, False)


@table(("0\n1, x\n 2 \n", 0, ["0", "2"]), ("0\n", 1, []))
def test_gpus_are_those_that_the_driver_lists(
    said: str, status: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{said}'\nexit {status}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_gpus({}) == expected


@table(
    ("1.0", "2026-01-01T00:00:02+00:00", True, True),
    ("1.0-r2", "2026-01-01T00:00:02+00:00", True, True),
    ("2.0", "2026-01-01T00:00:02+00:00", True, False),
    # Its worker began before the archive was built, or is not there.
    ("1.0", "2026-01-01T00:00:00+00:00", True, False),
    ("1.0", None, True, False),
    ("1.0", "2026-01-01T00:00:02+00:00", False, False),
)
def test_archive_that_does_not_serve_yet_replaces_the_older_one(
    version: str, began: str | None, is_ready: bool, is_current: bool, node: LocalNode
) -> None:
    server: Any = node.server
    path = server.directory / "a.mar"
    os.utime(path, (1767225601, 1767225601))  # a second after the year began
    archive: Any = SimpleNamespace(path=path, version="1.0")
    workers = [{"startTime": began}] if began else []
    server.management.describe.return_value = {"modelVersion": version, "workers": workers}
    server.management.is_ready.return_value = is_ready
    assert development.is_served(server, "a", archive) is is_current
    assert server.management.unregister.called is not is_current
    server.management.describe.side_effect = ManagementError("", 404)
    assert not development.is_served(server, "a", archive)
    server.management.describe.side_effect = ManagementError("", 500)
    with pytest.raises(ManagementError):
        development.is_served(server, "a", archive)
