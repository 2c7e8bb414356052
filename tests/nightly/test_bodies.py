"""Bodies as large and as many as the limits let in, at once: the configuration's heap holds them."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from deploy.models import ROOT
from deploy.nodes.run.properties import MIB, ServerSettings
from deploy.nodes.run.server import Server
from load.sandbox import run_server
from tests.e2e.conftest import MOBILENET, send, vary, worker_pid
from tests.photographs import photograph
from tests.waiting import until

MODEL, BATCH_SIZE = "mobilenet-bodies", 8
# Long enough for a first batch that is full: its bodies are held beside those of a full queue.
MAX_BATCH_DELAY_MS = 10_000
# More clients than the limits let in: some hear 503.
TOO_MANY = 4
LOG = f"-Dlog4j2.configurationFile={ROOT}/deploy/log4j2.xml"


@pytest.fixture(scope="module")
def store(model_store: Path) -> Path:
    # A worker that is held for a test must not be replaced meanwhile.
    vary(model_store, MODEL, MOBILENET, {"max_body_bytes": 32 * MIB}, {"responseTimeout": 250})
    return model_store


@contextmanager
def served(store: Path, config: str, vmargs: str) -> Iterator[Server]:
    """mobilenet-v2 behind one of the committed configurations, with other arguments to Java."""
    with run_server(store, ROOT / config, [f"vmargs={LOG} {vmargs}"]) as server:
        server.register(MODEL, MODEL, batch_size=BATCH_SIZE, max_batch_delay_ms=MAX_BATCH_DELAY_MS, workers=1)
        yield server


@pytest.fixture
def hold() -> Iterator[Callable[[int], int]]:
    """Stop a worker where it stands; it goes on when the test ends, if not before, and sees that its server is gone."""
    held: list[int] = []

    def stop(pid: int) -> int:
        os.kill(pid, signal.SIGSTOP)
        held.append(pid)
        return pid

    yield stop
    for pid in held:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def padded(size: int) -> bytes:
    return photograph("coffee").ljust(size, b"\0")


def is_full(server: Server) -> bool:
    return bool(server.management.describe(MODEL)["jobQueueStatus"]["remainingCapacity"] == 0)


@pytest.mark.parametrize("config", ["config.properties", "config.large-bodies.properties"])
def test_uploads_as_large_and_as_many_as_the_limits_let_in_are_all_answered(
    store: Path, hold: Callable[[int], int], config: str
) -> None:
    settings = ServerSettings.read(ROOT / config)
    assert settings.heap_bytes and settings.direct_bytes
    largest = settings.max_request_size
    heap, direct = settings.heap_bytes // MIB, settings.direct_bytes // MIB
    vmargs = f"-Xmx{heap}m -XX:MaxDirectMemorySize={direct}m -XX:+ExitOnOutOfMemoryError"
    with served(store, config, vmargs) as server:
        # So that all has arrived before any of it is answered.
        pid, held = server.pid(), hold(worker_pid(server, MODEL))
        fitting = settings.job_queue_size + BATCH_SIZE
        bodies = [padded(largest)] * (fitting + TOO_MANY) + [padded(largest + 1)] * 2
        with ThreadPoolExecutor(len(bodies)) as pool:
            sent = [pool.submit(send, server, MODEL, body, timeout_s=200) for body in bodies]
            # Within the clients' own 200 s; a loaded machine has needed 90.
            until(lambda: is_full(server) and sum(each.done() for each in sent) >= TOO_MANY + 2, 180)
            os.kill(held, signal.SIGCONT)
            answers = [each.result() for each in sent]
        statuses = Counter(answer.status for answer in answers)
        assert statuses[413] == 2
        assert set(statuses) == {200, 413, 503}
        assert statuses[200] >= settings.job_queue_size
        assert {next(iter(answer.body)) for answer in answers if answer.status == 200} == {"espresso"}
        assert send(server, MODEL, photograph("coffee")).status == 200
        assert (server.pid(), worker_pid(server, MODEL)) == (pid, held)
        assert "OutOfMemory" not in (server.logs / "ts_log.log").read_text()


def test_server_whose_heap_is_full_dies_at_once_says_so_and_can_be_started_again(
    store: Path, hold: Callable[[int], int]
) -> None:
    # Direct memory, through which bodies come, has room: where it has as little as the heap, the last bodies may be
    # refused for it (507), and the others fit the heap.
    vmargs = "-Xmx48m -XX:MaxDirectMemorySize=256m -XX:+ExitOnOutOfMemoryError"
    with served(store, "config.properties", vmargs) as server:
        pid, held = server.pid(), hold(worker_pid(server, MODEL))
        with ThreadPoolExecutor(8) as pool:
            sent = [pool.submit(send, server, MODEL, padded(7 * MIB), timeout_s=200) for _ in range(8)]
            until(lambda: server.pid() is None, 180)
            assert all(each.exception(60) is not None or each.result().status >= 500 for each in sent)
        os.kill(held, signal.SIGCONT)
        reason = "Terminating due to java.lang.OutOfMemoryError: Java heap space"
        assert server.describe_death() == f"process {pid} has died: {reason}"
        # No worker outlives its server.
        until(lambda: not psutil.pid_exists(held))
        assert not server.stop()
        server.start()
        assert server.describe_death() is None
        assert "Terminating due to" in (server.logs / "console.last.log").read_text()
        server.register(MODEL, MODEL, batch_size=BATCH_SIZE, max_batch_delay_ms=1, workers=1)
        assert send(server, MODEL, photograph("coffee")).status == 200
