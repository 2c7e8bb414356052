"""The search, on loads whose limit is known."""

import pytest

from load.errors import BadRange
from load.runs.search import Found, Grid, highest


@pytest.mark.parametrize(
    ("grid", "limit", "load", "is_limit"),
    [
        (Grid(10, 100, 10), 57, 50, False),
        (Grid(10, 100, 10), 60, 60, False),
        (Grid(10, 100, 10), 100, 100, True),
        (Grid(10, 100, 10), 1000, 100, True),
        (Grid(10, 100, 10), 10, 10, False),
        (Grid(10, 100, 10), 9, None, False),
        (Grid(10, 95, 10), 1000, 90, True),
        (Grid(1, 1, 1), 5, 1, True),
        (Grid(1, 2, 1), 1, 1, False),
        (Grid(1, 64, 1), 37, 37, False),
        (Grid(0.5, 2, 0.25), 1.3, 1.25, False),
    ],
)
def test_highest_of_a_known_limit_is_found(grid: Grid, limit: float, load: float | None, is_limit: bool) -> None:
    found = highest(grid, lambda load: load, lambda measured: measured <= limit)
    assert (found.load, found.is_limit) == (load, is_limit)
    assert found.measured == (grid.low if load is None else load)


def test_highest_of_64_measures_a_logarithm_of_them_and_its_result_twice() -> None:
    measured: list[float] = []

    def measure(load: float) -> float:
        measured.append(load)
        return load

    assert highest(Grid(1, 64, 1), measure, lambda load: load <= 37).load == 37
    assert measured == [1, 64, 32, 48, 40, 36, 38, 37, 37]


def test_highest_that_held_by_luck_is_given_up_for_the_next_that_holds_again() -> None:
    seen: list[float] = []

    def holds(load: float) -> bool:
        seen.append(load)
        # 7 holds the first time only; 6 was never asked before, and never holds; 5 does.
        return load <= 5 or (load == 7 and seen.count(7) == 1)

    assert highest(Grid(1, 8, 1), lambda load: load, holds) == Found(5, 5, is_limit=False)


@pytest.mark.parametrize(("low", "high", "step"), [(0, 10, 1), (10, 5, 1), (1, 10, 0), (-1, 10, 1)])
def test_grid_of_nothing_is_refused(low: float, high: float, step: float) -> None:
    with pytest.raises(BadRange, match="cannot search"):
        Grid(low, high, step)
