"""Percentiles, against nearest rank worked out by hand: the histogram is right to 0.1 %."""

import pytest

from load.measure.latencies import Latencies


@pytest.mark.parametrize(
    ("values_ms", "percent", "expected_ms"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 100, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0, 3.0], 50, 2.0),
        # The example of nearest rank in Wikipedia, "Percentile".
        ([15.0, 20.0, 35.0, 40.0, 50.0], 5, 15.0),
        ([15.0, 20.0, 35.0, 40.0, 50.0], 40, 20.0),
        ([15.0, 20.0, 35.0, 40.0, 50.0], 50, 35.0),
        ([float(value) for value in range(1, 101)], 99, 99.0),
        ([float(value) for value in range(1, 1001)], 99.9, 999.0),
        ([0.0001, 2 * 24 * 3600e3], 100, 24 * 3600e3),
    ],
)
def test_percentile_of_known_values_is_nearest_rank(values_ms: list[float], percent: float, expected_ms: float) -> None:
    latencies = Latencies(value / 1e3 for value in values_ms)
    assert latencies.percentile_ms(percent) == pytest.approx(expected_ms, rel=1e-3)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], -1), ([1.0], 100.1)])
def test_percentile_without_meaning_raises(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        Latencies(values).percentile_ms(percent)


def test_statistics_of_two_values_name_everything() -> None:
    statistics = Latencies([0.010, 0.030]).statistics_ms()
    assert list(statistics) == ["min", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"]
    assert list(statistics.values()) == pytest.approx([10, 20, 10, 30, 30, 30, 30, 30], rel=1e-3)
    assert Latencies([]).statistics_ms() == {}


def test_distribution_rises_to_the_maximum() -> None:
    points = list(Latencies(value / 1e3 for value in range(1, 1001)).distribution())
    assert points == sorted(points)
    assert [len(points), points[0][0]] == [61, 0]
    # Of 1 .. 1000 ms, every percentile is ten times as many ms.
    assert [value / 10 for _, value in points[1:]] == pytest.approx([level for level, _ in points[1:]], abs=0.2)
    assert points[20][0] == pytest.approx(90)
    assert points[-1][0] == pytest.approx(99.9)
