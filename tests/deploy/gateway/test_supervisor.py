"""The control process under its supervisor, and the wait for a drained node."""

import argparse
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import requests

from deploy.gateway import __main__ as gateway
from deploy.gateway import drain, supervisor
from deploy.gateway.drain import MARK, drain_local, take_out, undrain_local, wait_idle, wait_routed
from deploy.gateway.envoy import process
from deploy.gateway.settings import GatewaySettings
from deploy.models import ROOT
from deploy.nodes.run import ServerError, processes
from deploy.nodes.run.machine import LocalNode
from deploy.nodes.run.server import Server as TorchServe
from load.sandbox import GATEWAY_PORTS, Sandbox, free_ports
from tests.client.script import Server, Step, ok
from tests.disks import full_disk
from tests.tables import table
from tests.waiting import until
from torchserve_client.gateway import Gateway, NodeState
from torchserve_client.transport import Request


@table(
    ("sys.exit(3)", pytest.raises(supervisor.GatewayFailed, match="the control process did not start")),
    # A kernel without memory may have killed it.
    ("os.kill(os.getpid(), 9)", nullcontext()),
)
def test_killed_control_starts_again(end: str, outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_words: object, log: Path, stdin: int) -> "subprocess.Popen[bytes]":
        program = f"import os, sys; print('started', flush=True); {end}"
        with log.open("ab") as output:
            return subprocess.Popen([sys.executable, "-c", program], stdin=stdin, stdout=output)

    monkeypatch.setattr(supervisor, "start_module", start)
    monkeypatch.setattr(supervisor, "RETRY_S", 0)
    control = supervisor.Control(tmp_path / "gateway.yaml", tmp_path / "nodes.json", tmp_path)

    def is_started_again() -> bool:
        control.keep()
        return sum(log.read_text().count("started") for log in tmp_path.glob("control.log")) > 1

    with outcome:
        until(is_started_again)
    control.stop()


@table((None, nullcontext()), (process.EnvoyError("often"), pytest.raises(supervisor.GatewayFailed, match="often")))
def test_envoy_starts_after_the_control_process_and_ends_before_it(
    failure: Any, outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, is_ending = list[object](), threading.Event()
    control, envoy = Mock(has_answered=False), Mock()

    def keep() -> None:
        steps.append("control")
        control.has_answered = len(steps) > 1
        if len(steps) == 4:
            raise OSError("the disk is full")  # it ends nothing
        if len(steps) > 6:
            is_ending.set()

    control.keep, control.stop = keep, lambda: steps.append("control stops")
    envoy.keep = Mock(side_effect=lambda _: steps.append("Envoy"))
    envoy.stop = Mock(side_effect=lambda limit_s: steps.append(("Envoy stops", limit_s)), return_value=True)
    if failure:
        envoy.keep.side_effect = failure
    for name, value in {"Control": Mock(return_value=control), "Envoy": lambda _: envoy, "_keep_nodes": Mock()}.items():
        monkeypatch.setattr(supervisor, name, value)
    for name in ("CHECK_S", "RETRY_S"):
        monkeypatch.setattr(supervisor, name, 0.001)
    with outcome:
        supervisor.supervise(GatewaySettings(), tmp_path / "g", tmp_path / "n", tmp_path, is_ending)
    kept = ["control"] * 2 if failure else ["control", "control", "Envoy", "control", *["control", "Envoy"] * 2]
    assert steps == [*kept, ("Envoy stops", GatewaySettings().limits.response_s), "control stops"]
    supervisor.Control.assert_called_once_with(tmp_path / "g", tmp_path / "n", tmp_path)  # type: ignore[attr-defined]


def test_control_process_that_hangs_is_killed_once_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, started = [100.0], list[Mock]()

    def start(*_: object) -> Mock:
        started.append(Mock(poll=Mock(return_value=None)))
        started[-1].kill.side_effect = lambda: started[-1].poll.configure_mock(return_value=-9)
        return started[-1]

    monkeypatch.setattr(supervisor, "start_module", start)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    (tmp_path / "control.log").touch()
    control = supervisor.Control(tmp_path / "gateway.yaml", tmp_path / "nodes.json", tmp_path)
    # It starts within a minute, and is killed and started again otherwise, but not more often than every 5 s.
    for at_s, kills, starts in ((0.0, 0, 1), (60.0, 0, 1), (60.1, 1, 1), (60.2, 1, 2), (120.3, 2, 2), (120.4, 2, 3)):
        now_s[0] = 100.0 + at_s
        control.keep()
        assert (sum(each.kill.call_count for each in started), len(started)) == (kills, starts), at_s
    control.stop()
    started[-1].send_signal.assert_called_once_with(signal.SIGTERM)


def test_envoy_that_dies_often_in_a_short_time_ends_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    envoy: Any = process.Envoy(tmp_path)
    monkeypatch.setattr(process, "spawn", spawn := Mock())
    envoy._wait_until_ready, envoy._child, envoy.pid = Mock(), Mock(), lambda: None
    for _ in range(2 * process.DEATHS):
        envoy.keep({})
        now_s[0] += process.DEATHS_S / (process.DEATHS - 1)
    with pytest.raises(process.EnvoyError, match="Envoy has died"):
        for _ in range(process.DEATHS - 1):
            now_s[0] -= 0.1
            envoy.keep({})
            now_s[0] += process.DEATHS_S / (process.DEATHS - 1)
    assert spawn.call_count >= 2 * process.DEATHS


@pytest.mark.parametrize(("watcher", "started"), [(None, True), (4711, False)])
def test_dead_node_is_started_again_unless_another_process_watches_it(
    watcher: int | None, started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_ending, found = threading.Event(), list[object]()

    def describe_death() -> str:
        is_ending.set()
        return "it has died"

    dead = SimpleNamespace(title="node-1", server=SimpleNamespace(describe_death=describe_death))
    calls = {
        "local_nodes": lambda *found: [dead][found != ("layout", tmp_path) :],
        "find_watcher": lambda _: watcher,
        "start_node": found.append,
    }
    for name, value in {**calls, "Layout": SimpleNamespace(read=lambda _: "layout"), "NODES_S": 0.01}.items():
        monkeypatch.setattr(supervisor, name, value)
    supervisor._keep_nodes(tmp_path, is_ending)
    assert bool(found) is started


def test_problem_of_the_control_process_is_logged_once_and_so_is_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(socket, "socketpair", lambda: (ours, theirs.dup()))
    monkeypatch.setattr(supervisor, "start_module", lambda *_: SimpleNamespace(poll=lambda: None))
    control = supervisor.Control(tmp_path / "gateway.yaml", tmp_path / "nodes.json", tmp_path)
    control.keep()
    with ours, theirs:
        for problem in ("no such key", "no such key", "", ""):
            (tmp_path / supervisor.PROBLEM).write_text(problem)
            theirs.send(b"x")
            control.keep()
    assert caplog.messages == ["no such key", "the gateway works as configured again"]


def test_gateway_of_another_user_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = SimpleNamespace(send_signal=Mock(side_effect=psutil.AccessDenied(7)))
    monkeypatch.setattr(gateway, "find_holder", lambda _: 7)
    monkeypatch.setattr(psutil, "Process", lambda _: process)
    assert gateway.main(["stop", "--state-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "gateway: the gateway, process 7, is not stopped: another user runs it\n"


@table(
    ([0], 30.0, 0, ["the last response is sent"]),
    ([3, 1, 0], 30.0, 0, ["3 requests are in flight; at most 30 s", "the last response is sent"]),
    # The wait for clients that keep sending ends after limit_s.
    ([2], 0.4, 2, ["2 requests are in flight; at most 0.4 s", "2 requests have no response after 0.4 s"]),
)
def test_node_is_waited_for_until_it_is_idle_or_late(
    counts: list[int], limit_s: float, unanswered: int, reported: list[str]
) -> None:
    words, left, began_s = list[str](), iter(counts), time.monotonic()
    assert wait_idle(lambda: next(left, counts[-1]), words.append, notice_s=0.1, limit_s=limit_s) == unanswered
    assert words == reported
    assert 0.1 <= time.monotonic() - began_s < 20


@pytest.mark.parametrize("is_drained", [False, True])
def test_node_undoes_only_its_own_drain(is_drained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = LocalNode("node-1", tmp_path, TorchServe(ROOT / "config.properties"))
    # Its state in this machine's gateway, which drains it on request.
    shown: dict[str, Any] = {"name": "n", "is_draining": is_drained, "is_routed": True, "in_flight": 0}
    shown["management"] = local.server.settings.management_url

    def answer(request: Request) -> Step:
        if request.method == "PUT":
            shown["is_draining"] = json.loads(request.body)["draining"]
        return ok([shown])

    monkeypatch.setattr(drain, "MOMENT_S", 0.0)
    monkeypatch.setattr(drain, "connect", lambda _: Gateway("http://g", transport=Server(answer)))
    (config := local.folder / "gateway.yaml").touch()
    drain_local(local, config)
    assert (shown["is_draining"], (local.folder / MARK).exists()) == (True, not is_drained)
    undrain_local(local, config)
    assert (shown["is_draining"], (local.folder / MARK).exists()) == (is_drained, False)
    # A node whose count is not known is not idle.
    shown["in_flight"] = None
    gateway = drain.connect(GatewaySettings())
    assert not take_out(gateway, "n", 0.2)
    monkeypatch.setattr(drain, "ROUTED_S", 0.1)
    wait_routed(gateway, "n")
    shown["is_routed"] = False
    with pytest.raises(ServerError, match="n receives no requests after"):
        wait_routed(gateway, "n")


@table(("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("10.0.0.1", "10.0.0.1"))  # noqa: S104
def test_gateway_is_asked_at_an_address_that_this_machine_reaches(address: str, host: str) -> None:
    ports = replace(GatewaySettings().ports, control_address=address)
    assert drain.connect(GatewaySettings(ports=ports)).url == f"http://{host}:8003"


class Killed(BaseException):
    """As a SIGKILL."""


class Fleet:
    """A gateway of the nodes a and b, and their servers; it notes each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **in_flight: int) -> None:
        self._folder, self.down, self.draining = folder, set[str](), set[str]()
        self.left = 10**9  # steps until a kill
        self.steps, self.in_flight, self.waits_s = list[str](), in_flight, list[float]()
        self.watcher: int | None = None
        self.running = [self._local(name) for name in ("a", "b")]
        self.states = [NodeState(name, False, True, 0, f"http://{name}") for name in ("a", "b")]
        gateway = Mock(nodes=lambda: self.states, node={each.name: each for each in self.states}.__getitem__)
        gateway.drain = self._drain
        calls: dict[str, Any] = {
            **{"connect": lambda _: gateway, "read_settings": lambda _: GatewaySettings(), "stop_node": self._stop},
            **{"find_running": lambda _: self.running, "find_watcher": lambda _: self.watcher},
            **{"all_nodes": lambda *_: self.running, "take_out": self._take_out},
            "wait_routed": lambda _, name: self._step(f"wait {name}"),
            "serve": SimpleNamespace(start_one=self._start, find_config=lambda _: None),
        }
        for name, value in calls.items():
            monkeypatch.setattr(drain, name, value)

    def _local(self, name: str) -> Any:
        (folder := self._folder / name).mkdir(exist_ok=True)
        server = SimpleNamespace(pid=lambda: None if name in self.down else 7)
        node = SimpleNamespace(management=f"http://{name}")
        return SimpleNamespace(title=name, node=lambda: node, folder=folder, server=server)

    def _step(self, words: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed
        self.steps.append(words)

    def _drain(self, name: str, is_draining: bool = True) -> None:
        self._step(f"{'' if is_draining else 'un'}drain {name}")
        (self.draining.add if is_draining else self.draining.discard)(name)
        self._note_states()

    def _start(self, local: Any) -> None:
        self._step(f"start {local.title}")
        self.down.discard(local.title)
        self._note_states()

    def _note_states(self) -> None:
        lost = self.draining | self.down
        self.states[:] = [replace(each, is_routed=each.name not in lost) for each in self.states]

    def _stop(self, local: Any, *, is_for_good: bool) -> None:
        assert not is_for_good  # its models are restored at its next start
        self._step(f"stop {local.title}")
        self.down.add(local.title)

    def _take_out(self, _: object, name: str, limit_s: float) -> bool:
        self._step(f"take out {name}")
        self.draining.add(name)
        self._note_states()
        self.waits_s.append(limit_s)
        return not self.in_flight.get(name)


def test_restart_takes_nodes_out_one_by_one_and_only_if_another_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ["take out {0}", "stop {0}", "start {0}", "undrain {0}", "wait {0}"]
    fleet, options = (
        Fleet(monkeypatch, tmp_path),
        argparse.Namespace(gateway_config=Path(), config=None, state_dir=tmp_path),
    )
    monkeypatch.setattr(processes, "ATTEMPTS", 1)
    with processes.hold_pid_file(tmp_path / "restart.pid"), pytest.raises(ServerError, match="already running"):
        drain.restart(options)
    with full_disk() as disk, redirect_stdout(disk):  # or a reader that has ended
        drain.restart(options)
    assert fleet.steps == [step.format(name) for name in "ab" for step in steps]
    assert fleet.waits_s == [GatewaySettings().limits.response_s] * 2
    fleet = Fleet(monkeypatch, tmp_path, b=1)
    with pytest.raises(ServerError, match="b is not restarted, and receives requests again"):
        drain.restart(options)
    assert fleet.steps == [*(step.format("a") for step in steps), "take out b", "undrain b"]
    lost = NodeState("b", False, False, 0, "http://b")
    for changed, words in (
        ({"states": [fleet.states[0], lost]}, "b would not serve in its place"),
        ({"states": fleet.states[:1]}, "no other node would serve in its place"),
        ({"watcher": 7}, "process 7 watches it"),
        ({"running": []}, "no node of this machine runs"),
    ):
        vars(fleet := Fleet(monkeypatch, tmp_path)).update(changed)
        with pytest.raises(ServerError, match=words):
            drain.restart(options)
        assert fleet.steps == []


def test_restart_that_is_killed_at_any_step_ends_when_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, step, is_killed = argparse.Namespace(gateway_config=Path(), config=None, state_dir=tmp_path), 0, True
    while is_killed:
        fleet = Fleet(monkeypatch, tmp_path)
        fleet.left, is_killed = step, False
        try:
            drain.restart(options)
        except Killed:
            is_killed = True
        fleet.left = 10**9
        drain.restart(options)
        assert (fleet.down, fleet.draining, [*tmp_path.glob("*/*")]) == (set(), set(), []), step
        assert {f"start {name}" for name in "ab"} <= {*fleet.steps}
        step += 1
    assert step == 11


@table(
    ({}, {}, ["take out a", "stop a"]),
    ({"timeout": 1.5}, {}, ["take out a", "stop a"]),
    ({"keep": True}, {}, ["take out a"]),
    ({"undo": True}, {}, ["undrain a"]),
    ({}, {"watcher": 7}, ["take out a"]),
    ({}, {"running": []}, ["take out a"]),
    ({}, {"in_flight": {"a": 1}}, ["take out a"]),
)
def test_drained_node_is_stopped_unless_something_else_does_so(
    given: dict[str, Any], state: dict[str, Any], steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mark := tmp_path / "a" / MARK).parent.mkdir()
    mark.touch()
    fleet = Fleet(monkeypatch, tmp_path)
    vars(fleet).update(state)
    options = {"target": "a", "undo": False, "keep": False, "timeout": None, "state_dir": tmp_path, **given}
    with pytest.raises(ServerError, match="a stays drained, and is not stopped") if fleet.in_flight else nullcontext():
        drain.drain(argparse.Namespace(gateway_config=Path(), **options))
    assert (fleet.steps, mark.exists()) == (steps, "undo" not in given)
    assert set(fleet.waits_s) <= {given.get("timeout", GatewaySettings().limits.response_s)}


# Is killed when it has started the gateway's process; before that it changes nothing.
START = """
import os, signal, sys
from deploy.gateway import __main__ as gateway
start_module = gateway.start_module

def start(*arguments):
    start_module(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

gateway.start_module = start
gateway.main(sys.argv[1:])
"""


@pytest.mark.builds
def test_gateway_whose_start_is_killed_runs_when_it_is_repeated(tmp_path: Path) -> None:
    ports = dict(zip(GATEWAY_PORTS, free_ports(len(GATEWAY_PORTS)), strict=True))
    (tmp_path / "nodes.json").write_text("[]")
    sandbox = Sandbox(tmp_path, {"ports": ports}, ())
    files = {"--config": sandbox.config, "--nodes-file": sandbox.nodes_file, "--state-dir": sandbox.state_dir}
    words = [str(word) for item in files.items() for word in item]
    try:
        killed = subprocess.run([sys.executable, "-c", START, "start", *words], cwd=ROOT, check=False)
        assert killed.returncode == -signal.SIGKILL and sandbox.command("start").returncode == 0
        assert requests.get(f"{sandbox.http}/v2/health/live", timeout=30).status_code == 200
        assert requests.get(f"{sandbox.control}/control/nodes", timeout=30).json() == []
    finally:
        assert sandbox.command("stop").stdout == "gateway: stopped\n"
