"""When numbers stand still."""

import pytest

from load.generate.windows import Window, unstable


def windows(*values: tuple[float, float]) -> list[Window]:
    return [Window(float(number), rate, latency) for number, (rate, latency) in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "percentage", "expected"),
    [
        ([], 10, "0 of 3 windows"),
        ([(100, 5), (100, 5)], 10, "2 of 3 windows"),
        ([(100, 5), (100, 5), (100, 5)], 1, None),
        ([(91, 5), (100, 5), (109, 5)], 10, None),
        ([(80, 5), (100, 5), (120, 5)], 10, "throughput of the last 3 windows is off its mean by 20 %"),
        ([(100, 4), (100, 5), (100, 6)], 10, "latency of the last 3 windows is off its mean by 20 %"),
        # Only the last three matter.
        ([(1, 90), (100, 5), (100, 5), (100, 5)], 10, None),
        ([(0, 0), (0, 0), (0, 0)], 10, "throughput of the last 3 windows is off its mean by 100 %"),
    ],
)
def test_unstable_windows_say_what_moves(values: list[tuple[float, float]], percentage: float, expected: str) -> None:
    assert unstable(windows(*values), percentage) == expected
