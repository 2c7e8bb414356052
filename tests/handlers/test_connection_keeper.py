"""A worker process is killed, and its connection ends when TorchServe can answer the requests that it has sent."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from handlers.connection_keeper import ConnectionKeeper
from tests.waiting import until

WORKER = """
import socket, sys
from handlers import connection_keeper
from handlers.connection_keeper import ConnectionKeeper, frontend_connection
connection_keeper.WAIT_S = float(sys.argv[3])
def load(): return ConnectionKeeper(frontend_connection())
def handle_connection(cl_socket): return load()
keeper = handle_connection(socket.socket(fileno=int(sys.argv[1])))
with keeper: pass
if sys.argv[2] == "busy": keeper.__enter__()
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def worker(state: str, wait_s: float) -> Iterator[tuple[socket.socket, "subprocess.Popen[bytes]", psutil.Process]]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", WORKER, str(theirs.fileno()), state, str(wait_s)]
    pipe = subprocess.PIPE
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=pipe, stdout=pipe) as process:
        theirs.close()
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        (keeper,) = psutil.Process(process.pid).children()
        yield ours, process, keeper
        process.kill()
        # Its output ends with it, although its keeper may still run.
        assert process.stdout.read() == b""


def is_over(connection: socket.socket, within_s: float) -> bool:
    return bool(select.select([connection], [], [], within_s)[0])


def is_gone(keeper: psutil.Process) -> bool:
    return not keeper.is_running() or keeper.status() == psutil.STATUS_ZOMBIE


def test_killed_worker_that_waits_keeps_its_connection_until_the_batch_has_come() -> None:
    with worker("idle", 60.0) as (connection, process, keeper):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not is_over(connection, 0.3)
        connection.sendall(b"I" * 100_000)
        assert is_over(connection, 10.0)
        until(lambda: is_gone(keeper))


@pytest.mark.parametrize(("state", "wait_s"), [("idle", 0.5), ("busy", 60.0)])
def test_killed_workers_connection_ends_without_a_batch_and_nothing_is_left(state: str, wait_s: float) -> None:
    with worker(state, wait_s) as (connection, process, keeper):
        os.kill(process.pid, signal.SIGKILL)
        assert is_over(connection, 10.0)
        until(lambda: is_gone(keeper))


def test_keeper_ends_with_the_frontends_connection_while_its_worker_lives_on() -> None:
    with worker("idle", 60.0) as (connection, process, keeper):
        connection.close()
        until(lambda: is_gone(keeper))
        assert process.poll() is None


def test_keeper_that_cannot_be_started_is_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    ours, theirs = socket.socketpair()
    with ours, theirs, ConnectionKeeper(theirs):
        pass
    assert "The connection's keeper cannot start: " in caplog.text and len(caplog.records) == 1
