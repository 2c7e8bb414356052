"""The control process under its supervisor."""

import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.gateway import supervisor
from tests.waiting import until


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("sys.exit(3)", pytest.raises(supervisor.GatewayFailed, match="the control process did not start")),
        # A kernel without memory may have killed it.
        ("os.kill(os.getpid(), 9)", nullcontext()),
    ],
)
def test_control_process_that_is_killed_before_its_first_heartbeat_is_started_again(
    end: str, outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_words: object, log: Path, stdin: int) -> "subprocess.Popen[bytes]":
        program = f"import os, sys; print('started', flush=True); {end}"
        with log.open("ab") as output:
            return subprocess.Popen([sys.executable, "-c", program], stdin=stdin, stdout=output)

    monkeypatch.setattr(supervisor, "start_module", start)
    monkeypatch.setattr(supervisor, "RETRY_S", 0)
    control = supervisor.Control(tmp_path / "gateway.yaml", tmp_path / "nodes.json", tmp_path)

    def is_started_again() -> bool:
        control.keep()
        log = tmp_path / "control.log"
        return log.exists() and log.read_text().count("started") > 1

    with outcome:
        until(is_started_again)
    control.stop()


@pytest.mark.parametrize(("watcher", "started"), [(None, True), (4711, False)])
def test_dead_node_is_started_again_unless_another_process_watches_it(
    watcher: int | None, started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_ending = threading.Event()
    found: list[object] = []

    def describe_death() -> str:
        is_ending.set()
        return "it has died"

    dead = SimpleNamespace(title="node-1", server=SimpleNamespace(describe_death=describe_death))
    for name, value in {
        "Layout": SimpleNamespace(read=lambda _: "layout"),
        "local_nodes": lambda *_: [dead],
        "find_watcher": lambda _: watcher,
        "start_node": found.append,
        "NODES_S": 0.01,
    }.items():
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
