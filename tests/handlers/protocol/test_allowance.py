"""The common limit of a request's items, which several threads decode."""

import threading
from concurrent.futures import ThreadPoolExecutor

from handlers.errors import WorkTooLarge
from handlers.protocol.requests import Allowance


def test_allowance_that_several_threads_take_from_at_once_is_not_exceeded() -> None:
    for _ in range(50):
        allowance, start = Allowance(), threading.Barrier(4)

        def take(_: int, allowance: Allowance = allowance, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                allowance.take("pixels", 30, 100)
            except WorkTooLarge:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(take, range(4))) == 3
