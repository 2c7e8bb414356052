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
from tests.handlers.serving import Log, Patch
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


def is_gone(keeper: psutil.Process) -> bool:
    return not keeper.is_running() or keeper.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(("state", "wait_s"), [("idle", 60.0), ("idle", 0.5), ("busy", 60.0)])
def test_killed_workers_connection_ends_with_its_batch_or_without_one(state: str, wait_s: float) -> None:
    with worker(state, wait_s) as (connection, process, keeper):
        os.kill(process.pid, signal.SIGKILL)
        if (state, wait_s) == ("idle", 60.0):
            # A worker that waits keeps its connection until the batch has come.
            process.wait()
            assert not select.select([connection], [], [], 0.3)[0]
            connection.sendall(b"I" * 100_000)
        assert select.select([connection], [], [], 10.0)[0]
        until(lambda: is_gone(keeper))


def test_keeper_ends_with_the_frontends_connection_while_its_worker_lives_on() -> None:
    with worker("idle", 60.0) as (connection, process, keeper):
        connection.close()
        until(lambda: is_gone(keeper))
        assert process.poll() is None


def test_keeper_that_cannot_be_started_is_one_line_of_the_log(monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    ours, theirs = socket.socketpair()
    with ours, theirs, ConnectionKeeper(theirs):
        pass
    assert "The connection's keeper cannot start: " in caplog.text and len(caplog.records) == 1
