"""What the items of one request may ask for together, whichever thread decodes which of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from handlers.errors import WorkTooLarge
from handlers.protocol.requests import UNLIMITED, Allowance


def test_allowance_is_for_all_items_together_and_for_each_unit() -> None:
    allowance = Allowance()
    allowance.take("pixels", 60, 100)
    allowance.take("characters", 100, 100)
    allowance.take("pixels", 40, 100)
    with pytest.raises(WorkTooLarge, match="more pixels together than max_request_pixels, 100"):
        allowance.take("pixels", 1, 100)
    UNLIMITED.take("pixels", 10**12, 1)


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
