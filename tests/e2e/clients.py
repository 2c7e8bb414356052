"""Clients that send requests during a disturbance, and count the outcome of each.

Clients(url, count, body) -> a thread each, one request after the other, never a second try -> statuses, lost
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import requests

from tests.waiting import until

# Seconds for an answer, and for a thread to end: far above what any of it takes on a machine that stalls.
TIMEOUT_S = 120.0
# Seconds after an error.
PAUSE_S = 0.25
# Clients of a load.
MANY = 16


class Clients:
    """Clients between the start and the end of a `with` block."""

    def __init__(self, url: str, count: int, bodies: Sequence[bytes], *, interval_s: float = 0.0) -> None:
        """Describe them; each begins when the block does."""
        self.statuses: Counter[int] = Counter()
        self.lost: list[str] = []
        self.errors: list[str] = []
        self._url, self._bodies, self._interval_s = url, bodies, interval_s
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(count)]

    def _client(self, number: int) -> None:
        with requests.Session() as session:
            session.trust_env = False
            while not self._is_over.is_set():
                due_s = time.monotonic() + self._interval_s
                try:
                    answer = session.post(self._url, data=self._bodies[number % len(self._bodies)], timeout=TIMEOUT_S)
                    self.statuses[answer.status_code] += 1
                    if answer.status_code >= 400:
                        self.errors.append(answer.text[:300])
                        # TorchServe closes the connection of an error; what starts a worker needs the cores.
                        session.close()
                        self._is_over.wait(PAUSE_S)
                except requests.RequestException as error:
                    if "NewConnectionError" in str(error):
                        # Connection refused: nothing was sent.
                        return
                    self.lost.append(str(error))
                number += 1
                self._is_over.wait(max(0.0, due_s - time.monotonic()))

    def wait_for(self, count: int, status: int = 200) -> None:
        wanted = self.statuses[status] + count
        until(lambda: self.statuses[status] >= wanted, TIMEOUT_S, 0.02)

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self.end()


def capacity_per_s(url: str, bodies: Sequence[bytes]) -> float:
    with Clients(url, MANY, bodies) as asking:
        asking.wait_for(2 * MANY)
        before, began_s = asking.statuses[200], time.monotonic()
        time.sleep(3)
        rate = (asking.statuses[200] - before) / (time.monotonic() - began_s)
    assert_all_answered(asking)
    return rate


def under_load(url: str, bodies: Sequence[bytes], rate_per_s: float, meanwhile: Callable[[], None]) -> Clients:
    """Send at a rate, a second before and after included, for as long as something takes; returns what was answered."""
    with Clients(url, MANY, bodies, interval_s=MANY / rate_per_s) as asking:
        time.sleep(1)
        meanwhile()
        time.sleep(1)
    return asking


def assert_all_answered(clients: Clients) -> None:
    found = (clients.statuses, clients.lost[:3], clients.errors[:3])
    assert (set(clients.statuses), clients.lost) == ({200}, []), found
