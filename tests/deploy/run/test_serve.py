"""make serve before a start: errors of one line, and the files that it trusts."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.models import ROOT
from deploy.run.__main__ import main
from deploy.run.errors import ServerError
from deploy.run.lifecycle import find_watcher, stop_node
from deploy.run.machine import LocalNode
from deploy.run.processes import hold_pid_file
from deploy.run.production import NotAsConfigured, check_archives, start
from deploy.run.properties import ServerSettings, relocate_config
from deploy.run.restore import Record
from deploy.run.server import JAVA_CLASS, Server
from deploy.run.summary import call_stop, calls
from deploy.sandbox import make_settings
from tests.waiting import until

ENTRY = {"1.0": {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1}}


@pytest.mark.parametrize(
    ("load_models", "entries", "words"),
    [
        (("own=m.mar",), {}, "load_models and models= name no model"),
        (("m.mar", "n.mar"), {"m": ENTRY}, r"n\.mar is missing, and load_models names it: \S+ archive n builds it"),
    ],
)
def test_production_without_a_model_or_an_archive_does_not_start(
    load_models: tuple[str, ...], entries: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "m.mar").touch()
    with pytest.raises(NotAsConfigured, match=words):
        check_archives(ServerSettings(load_models=load_models, models=entries), tmp_path)
    check_archives(ServerSettings(load_models=("all",), models={"m": ENTRY}), tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    config = tmp_path / "config.properties"
    text = (ROOT / "config.production.properties").read_text()
    config.write_text(relocate_config(text, ROOT, make_settings(tmp_path)))
    return Server(config, directory=tmp_path, temporary=tmp_path)


def test_key_is_read_only_from_a_file_that_is_its_owners_alone(server: Server) -> None:
    assert server.key("inference") is None
    server.keys.write_text(json.dumps({api: {"key": "secret"} for api in ("inference", "management")}))
    server.keys.chmod(0o644)
    with pytest.raises(ServerError, match=r"other users can read it: chmod 600"):
        server.key("inference")
    server.keys.chmod(0o600)
    assert server.key("inference") == "secret"
    (line,) = calls(server, [("mobilenet-v2", "1.0")])
    url = f"{server.settings.inference_url}/predictions/mobilenet-v2"
    assert line == f'curl -H "Authorization: Bearer secret" -T examples/mobilenet-v2/espresso.jpg {url}'
    server.keys.write_text("{}")
    with pytest.raises(ServerError, match="expected the management key"):
        server.key("management")


def look_alike(folder: Path, *options: str, code: str = "import time; time.sleep(600)") -> subprocess.Popen[bytes]:
    """Start a process that looks like a TorchServe in a folder; its command line may be empty for a moment."""
    process = subprocess.Popen([sys.executable, "-c", code, *options, JAVA_CLASS], cwd=folder)
    until(lambda: JAVA_CLASS in psutil.Process(process.pid).cmdline())
    return process


def test_failed_start_leaves_nothing_to_restore_but_of_a_node_that_ran(server: Server, tmp_path: Path) -> None:
    node = LocalNode("node-1", tmp_path, server)
    # The models of an earlier run, which ended with its machine.
    Record(node).begin()
    with pytest.raises(NotAsConfigured, match="is missing, and load_models names it"):
        start([node])
    assert (Record(node).exists(), Record(node).read_pending()) == (False, [])
    Record(node).begin()
    with look_alike(server.directory) as process:
        (server.temporary / ".model_server.pid").write_text(str(process.pid))
        with pytest.raises(NotAsConfigured):
            start([node])
        runs = server.pid()
        process.kill()
    assert (runs, Record(node).exists()) == (process.pid, True)


def test_node_that_is_watched_is_not_forgotten(server: Server, tmp_path: Path) -> None:
    node = LocalNode("node-1", tmp_path, server)
    Record(node).begin()
    # One that watched it before left its own id.
    (tmp_path / "run.pid").write_text("1234567")
    with hold_pid_file(tmp_path / "run.pid"):
        assert find_watcher(node) == os.getpid()
        stop_node(node, is_for_good=True)
        assert Record(node).exists()
    stop_node(node, is_for_good=True)
    assert not Record(node).exists()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = look_alike(ROOT)
    yield process
    process.kill()
    process.wait()


def test_stale_pid_file_that_names_another_torchserve_neither_ends_nor_forgets_it(
    server: Server, other: subprocess.Popen[bytes]
) -> None:
    pid_file = server.temporary / ".model_server.pid"
    pid_file.write_text(str(other.pid))
    assert (server.pid(), server.describe_death(), server.stop()) == (None, None, False)
    server.clean_up()
    assert (pid_file.exists(), other.poll()) == (True, None)
    # Neither does a clock that is set, by which the process began before or after the file was written.
    for time_s in (0, 1 << 32):
        os.utime(pid_file, (time_s, time_s))
        assert server.describe_death() is None


# Takes a second for the answers in flight.
SLOW_TO_END = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), pathlib.Path("ended").touch(), sys.exit(0)))
pathlib.Path("ready").touch()
time.sleep(60)
"""


@pytest.mark.builds
def test_server_that_needs_a_second_to_end_is_not_killed(server: Server) -> None:
    with look_alike(server.directory, code=SLOW_TO_END) as process:
        until((server.directory / "ready").exists)
        (server.temporary / ".model_server.pid").write_text(str(process.pid))
        stopped = server.stop()
        process.kill()
    assert (stopped, (server.directory / "ended").exists()) == (True, True)


def test_pid_of_one_that_died_is_not_another_torchserves(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = server.temporary / ".model_server.pid"
    with look_alike(server.directory, "-Djava.io.tmpdir=/elsewhere") as process:
        pid_file.write_text(str(process.pid))
        died = server.describe_death()
        process.kill()
    assert str(died).startswith(f"process {process.pid} has died")
    # Nothing is removed while anything answers at its ports.
    with socket.create_server(server.settings.ports["management_address"]):
        monkeypatch.setattr("deploy.run.server.PORTS_S", 0.1)
        server.clean_up()
        assert pid_file.exists()
    server.clean_up()
    assert not pid_file.exists()


def test_server_is_found_while_java_is_in_a_folder_of_its_own_as_it_starts(server: Server, tmp_path: Path) -> None:
    (tmp_path / "hsperfdata_user").mkdir()
    with look_alike(tmp_path / "hsperfdata_user") as process:
        (server.temporary / ".model_server.pid").write_text(str(process.pid))
        found = server.pid()
        process.kill()
    assert found == process.pid


def test_server_that_was_started_with_another_tmpdir_is_found_by_its_configuration(
    server: Server, tmp_path: Path
) -> None:
    with look_alike(tmp_path, f"-Djava.io.tmpdir={tmp_path}", "-f", str(server.config)) as process:
        (tmp_path / ".model_server.pid").write_text(str(process.pid))
        found = Server(server.config, directory=tmp_path)
        other = Server(ROOT / "config.properties", directory=tmp_path)
        pids = (found.pid(), other.pid())
        process.kill()
    assert (found.temporary, pids) == (tmp_path, (process.pid, None))


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (ROOT / "config.properties", "make stop"),
        (ROOT / "config.production.properties", "make stop CONFIG=production"),
        (ROOT / "my" / "config.properties", "make stop CONFIG=my/config.properties"),
    ],
)
def test_command_that_stops_a_server_names_its_configuration(config: Path, command: str) -> None:
    assert call_stop(config) == command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["start", "--config", "no-such"], "start: no configuration no-such: CONFIG is a path, or one of large-"),
        (["run", "--node-count", "2"], "run: run watches one node, and there are 2: name it with --node"),
        (["run", "--node", "node-7"], "run: no node node-7: there are node-1"),
        (["restart"], "restart: no node of this machine runs"),
    ],
)
def test_wrong_command_is_one_line_and_exit_1(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--state-dir", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(words)
