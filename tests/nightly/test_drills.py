"""What goes wrong again and again: drills of minutes, which `make test-all` runs."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from deploy.server import Server
from tests.e2e.conftest import send, worker_pid
from tests.photographs import photograph

pytestmark = [pytest.mark.timeout(900)]

KILLS, CLIENTS = 5, 8


def test_worker_killed_again_and_again_comes_back_and_every_request_is_answered(
    server: Server, serve: Callable[..., str]
) -> None:
    name = serve()
    statuses: list[int] = []
    is_over = threading.Event()

    def client() -> None:
        while not is_over.is_set():
            statuses.append(send(server, name, photograph("chelsea")).status)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            killed, answered = worker_pid(server, name), Counter(statuses)[200]
            os.kill(killed, signal.SIGKILL)
            deadline = time.monotonic() + 120
            while worker_pid(server, name) == killed or Counter(statuses)[200] < answered + 2 * CLIENTS:
                assert time.monotonic() < deadline
                time.sleep(0.2)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
    # A request without an answer would have ended its client, and left its thread's exception to fail the test.
    assert not any(thread.is_alive() for thread in threads)
    assert set(statuses) <= {200, 500, 503, 507}
    assert send(server, name, photograph("chelsea")).status == 200
