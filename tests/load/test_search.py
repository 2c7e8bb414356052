"""The search and the rules of tuning, with known loads and batches."""

import pytest

from load.errors import LoadError
from load.search import find_highest
from load.tune import Advice, Point, advise


@pytest.mark.parametrize(
    ("loads", "limit", "expected"),
    [
        (range(10, 101, 10), 57, 50),
        (range(10, 101, 10), 1000, 100),
        (range(10, 101, 10), 10, 10),
        (range(10, 101, 10), 9, None),
        ([1, 2], 1, 1),
        ([1, 2, 4, 8, 16], 15, 8),
    ],
)
def test_highest_of_a_known_limit_is_found(loads: list[int], limit: int, expected: int | None) -> None:
    found = find_highest(loads, lambda load: load, lambda measured: measured <= limit)
    assert found == (None if expected is None else (expected, expected))


def test_highest_that_held_by_luck_is_given_up_for_the_next_that_holds_again() -> None:
    seen: list[int] = []

    def holds(load: int) -> bool:
        seen.append(load)
        # 6 meets the target only once; 5 was not measured before and does not meet it; 4 does.
        return load <= 4 or (load == 6 and seen.count(6) == 1)

    assert find_highest(range(1, 9), lambda load: load, holds) == (4, 4)
    assert seen == [1, 8, 4, 6, 7, 6, 5, 4]


# 10 ms an item and 20 ms a batch.
POINTS = [Point(size, 10 * size + 20) for size in (1, 2, 4, 8, 16)]


@pytest.mark.parametrize(
    ("threshold_ms", "expected"),
    [
        # 8 items take 100 ms, half of 200: one batch runs, one more can wait.
        (200, Advice(8, 1, 8)),
        (199, Advice(4, 1, 9)),
        (1000, Advice(16, 1, 72)),
        # A batch of 1 takes 30 ms: a request that just misses one is late, others are in time.
        (40, Advice(1, 1, 1)),
    ],
)
def test_advice_fits_two_batches_into_the_threshold(threshold_ms: float, expected: Advice) -> None:
    assert advise(POINTS, threshold_ms) == expected


def test_advice_for_less_than_a_single_request_takes_is_refused() -> None:
    with pytest.raises(LoadError, match=r"takes 30\.0 ms: no setting answers within 29 ms"):
        advise(POINTS, 29)
