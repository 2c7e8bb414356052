"""The rules of tuning, on batches whose time is known."""

import pytest

from load.errors import NotPossible
from load.runs.tune import Advice, Curve, Point, advise


@pytest.mark.parametrize(
    ("points", "per_item_ms", "per_batch_ms"),
    [
        ([Point(1, 15), Point(2, 20), Point(8, 50)], 5, 10),
        ([Point(1, 9), Point(2, 21)], 10.2, 0),  # a line through both would have a batch of none take -3 ms
        ([Point(4, 40)], 10, 0),
        ([Point(4, 40), Point(4, 60)], 12.5, 0),
    ],
)
def test_curve_of_known_batches_is_their_line(points: list[Point], per_item_ms: float, per_batch_ms: float) -> None:
    curve = Curve.fit(points)
    assert curve.per_item_ms == pytest.approx(per_item_ms)
    assert curve.per_batch_ms == pytest.approx(per_batch_ms)


@pytest.mark.parametrize(
    ("threshold_ms", "max_batch_size", "expected"),
    [
        # 10 ms an item and 20 ms a batch: 8 items take 100 ms, half of 200; one batch runs, one more can wait.
        (200, 32, Advice(8, 1, 8)),
        (219, 32, Advice(8, 1, 9)),
        (200, 4, Advice(4, 1, 9)),
        (1000, 16, Advice(16, 1, 72)),
        # A batch of 1 takes 30 ms: what just missed one cannot be in time, what did not can.
        (40, 32, Advice(1, 1, 1)),
    ],
)
def test_advice_fits_two_batches_into_the_threshold(threshold_ms: float, max_batch_size: int, expected: Advice) -> None:
    assert advise(Curve(10, 20), threshold_ms, max_batch_size) == expected


def test_advice_for_less_than_a_single_request_takes_is_refused() -> None:
    with pytest.raises(NotPossible, match=r"takes 30\.0 ms: no setting answers within 29 ms"):
        advise(Curve(10, 20), 29, 32)
