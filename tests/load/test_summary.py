"""What a run's raw results amount to, against numbers worked out by hand."""

import pytest

from load.summary import NO_ANSWER, Exchange, percentile, summarise


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 100, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0, 3.0], 50, 2.0),
        # The example of nearest rank in Wikipedia, "Percentile".
        ([15.0, 20.0, 35.0, 40.0, 50.0], 5, 15.0),
        ([15.0, 20.0, 35.0, 40.0, 50.0], 30, 20.0),
        ([15.0, 20.0, 35.0, 40.0, 50.0], 40, 20.0),
        ([15.0, 20.0, 35.0, 40.0, 50.0], 50, 35.0),
        ([15.0, 20.0, 35.0, 40.0, 50.0], 100, 50.0),
        # In floats, 7 / 100 * 100 is more than 7.
        ([float(value) for value in range(1, 101)], 7, 7.0),
        ([float(value) for value in range(1, 101)], 99, 99.0),
        ([float(value) for value in range(1, 1001)], 99.9, 999.0),
    ],
)
def test_percentile_of_known_values_is_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], -1), ([1.0], 100.1)])
def test_percentile_without_meaning_raises(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, percent)


def test_summary_of_two_clients_adds_their_rates() -> None:
    summary = summarise(
        [
            [Exchange(10.0, 10.5, 200), Exchange(10.5, 12.0, 200)],  # 2 in 2 s
            [Exchange(11.0, 11.25, 200)],  # 1 in 0.25 s
        ]
    )
    assert summary.completed == 3
    assert summary.throughput_per_s == 5.0
    assert summary.latencies_s == (0.25, 0.5, 1.5)
    assert summary.latency_s(50) == 0.5
    assert summary.latency_s(99) == 1.5
    assert summary.statuses == {200: 3}
    assert summary.failures == {}


def test_summary_of_failures_keeps_them_out_of_latencies_and_in_the_time() -> None:
    summary = summarise(
        [
            [
                Exchange(0.0, 1.0, 200),
                Exchange(1.0, 1.001, 503),
                Exchange(1.001, 3.0, NO_ANSWER),
                Exchange(3.0, 4.0, 200),
            ]
        ]
    )
    assert summary.completed == 2
    assert summary.throughput_per_s == 0.5
    assert summary.latencies_s == (1.0, 1.0)
    assert summary.statuses == {200: 2, 503: 1, 0: 1}
    assert summary.failures == {0: 1, 503: 1}


def test_summary_without_success_has_no_rate_and_no_percentile() -> None:
    summary = summarise([[Exchange(0.0, 1.0, 500)], []])
    assert (summary.completed, summary.throughput_per_s, summary.latencies_s) == (0, 0.0, ())
    with pytest.raises(ValueError, match="no percentile"):
        summary.latency_s(50)


def test_summary_of_bursts_counts_whole_cycles() -> None:
    """Four clients, answered together every second: 4 a second, wherever in a cycle the window began and ended."""
    clients = [[Exchange(0.3 + cycle, 1.3 + cycle, 200) for cycle in range(3)] for _ in range(4)]
    assert summarise(clients).throughput_per_s == pytest.approx(4.0)
