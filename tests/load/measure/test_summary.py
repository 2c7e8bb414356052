"""What a run's raw results amount to, against numbers worked out by hand."""

import pytest

from load.measure.exchange import NO_ANSWER, Exchange, Verdict, together
from load.measure.exchanges import Exchanges
from load.measure.rates import Rate, of_cycles, of_window
from load.measure.recording import Recording
from load.measure.summary import Summary, summarise
from load.runs.search import fair, is_met


def exchange(due_s: float, answered_s: float, status: int = 200, client: int = 0, sent_s: float = -1) -> Exchange:
    return Exchange(due_s, due_s if sent_s < 0 else sent_s, answered_s, status, client)


def summary_of(
    exchanges: list[Exchange], rate: Rate = of_cycles, opens_s: float = 0, closes_s: float = 10, **settings: float
) -> Summary:
    recording = Recording(Exchanges(exchanges), opens_s=opens_s, closes_s=closes_s)
    return summarise(recording, rate, **settings)


def test_summary_of_two_clients_adds_their_rates() -> None:
    # 2 in 2 s, and 1 in 0.25 s.
    summary = summary_of([exchange(1.0, 1.5), exchange(1.5, 3.0), exchange(2.0, 2.25, client=1)])
    assert (summary.completed, summary.throughput_per_s) == (3, 5.0)
    assert summary.latency_ms(50) == pytest.approx(500, rel=1e-3)
    assert summary.latency_ms(99) == pytest.approx(1500, rel=1e-3)
    assert (summary.statuses, summary.failures, summary.is_valid) == ({200: 3}, {}, True)


def test_summary_of_failures_keeps_them_out_of_latencies_and_in_the_time() -> None:
    summary = summary_of([exchange(0, 1), exchange(1, 1.001, 503), exchange(1.001, 3, NO_ANSWER), exchange(3, 4)])
    assert (summary.completed, summary.throughput_per_s) == (2, 0.5)
    assert summary.latency_ms(100) == pytest.approx(1000, rel=1e-3)
    assert summary.statuses == {200: 2, 503: 1, 0: 1}
    assert summary.failures == {0: 1, 503: 1}


def test_summary_without_success_has_no_rate_and_no_percentile_and_is_not_valid() -> None:
    summary = summary_of([exchange(0, 1, 500)])
    assert (summary.completed, summary.throughput_per_s) == (0, 0.0)
    assert summary.invalid_reasons == ("no good answer",)
    with pytest.raises(ValueError, match="no percentile"):
        summary.latency_ms(50)


def test_cycles_of_bursts_count_whole_ones() -> None:
    """Four clients, answered together every second: 4 a second, wherever in a cycle the window began and ended."""
    exchanges = [exchange(0.3 + cycle, 1.3 + cycle, client=client) for cycle in range(3) for client in range(4)]
    assert summary_of(exchanges).throughput_per_s == pytest.approx(4.0)


def test_window_counts_answers_that_came_in_it_whenever_they_were_due() -> None:
    exchanges = [exchange(-1, 0.5), exchange(1, 2), exchange(9, 9.9), exchange(9.5, 10.5), exchange(-2, -1)]
    summary = summary_of(exchanges, of_window)
    assert summary.throughput_per_s == 0.3
    # Latencies are of those that were due in it, all of them.
    assert summary.completed == 3


def test_goodput_counts_what_came_within_the_threshold() -> None:
    exchanges = [exchange(1, 1.1), exchange(2, 2.3), exchange(3, 3.1), exchange(4, 4.01, 503)]
    summary = summary_of(exchanges, of_window, latency_threshold_ms=200)
    assert (summary.throughput_per_s, summary.goodput_per_s, summary.in_time) == (0.3, 0.2, 2)


@pytest.mark.parametrize(("percent", "expected"), [(50, True), (66.6, True), (66.7, False), (99, False)])
def test_target_is_met_by_a_share_of_all_requests(percent: float, expected: bool) -> None:
    # One of three failed, at once: that does not help the percentile.
    summary = summary_of([exchange(1, 1.1), exchange(2, 2.1), exchange(4, 4.01, 503)], latency_threshold_ms=200)
    assert is_met(summary, percent) is expected


@pytest.mark.parametrize(
    ("lag_ms", "latency_ms", "unsent", "measurements"),
    [
        (0, 10, 0, 1),  # held
        (50, 10 + 50, 0, 1),  # held in spite of the generator
        (0, 500, 0, 1),  # missed, and the generator was in time
        (50, 200, 0, 2),  # missed, and the generator was late
        (50, 200, 9, 1),  # there was no keeping up with it
    ],
)
def test_fair_measurement_is_repeated_where_the_generator_may_be_to_blame(
    lag_ms: float, latency_ms: float, unsent: int, measurements: int
) -> None:
    loads = []

    def measure(load: float) -> Summary:
        loads.append(load)
        exchanges = [exchange(n / 100, (n + latency_ms / 10) / 100, sent_s=(n + lag_ms / 10) / 100) for n in range(100)]
        recording = Recording(Exchanges(exchanges), opens_s=0, closes_s=10, unsent=unsent)
        return summarise(recording, of_window, latency_threshold_ms=100)

    fair(measure, 99)(7)
    assert loads == [7] * measurements


def test_latency_counts_from_the_scheduled_time_and_lag_is_part_of_it() -> None:
    summary = summary_of([exchange(1, 2, sent_s=1.8)], of_window)
    assert summary.latency_ms(50) == pytest.approx(1000, rel=1e-3)
    assert summary.lag.percentile_ms(50) == pytest.approx(800, rel=1e-3)


@pytest.mark.parametrize(
    ("lag_ms", "latency_ms", "is_valid"),
    [(9, 20, True), (11, 20, False), (11, 200, True), (21, 200, False)],
)
def test_run_of_a_late_generator_is_not_valid_and_says_by_how_much(
    lag_ms: float, latency_ms: float, is_valid: bool
) -> None:
    exchanges = [exchange(n / 100, n / 100 + latency_ms / 1e3, sent_s=n / 100 + lag_ms / 1e3) for n in range(100)]
    summary = summary_of(exchanges, of_window)
    assert summary.is_valid is is_valid
    if not is_valid:
        assert f"{lag_ms:.1f} ms late" in summary.invalid_reasons[0]


def test_run_with_doubts_names_each() -> None:
    recording = Recording(Exchanges([exchange(1, 2)]), opens_s=0, closes_s=10, throttled=3, unsent=4, cpu_s=9.5)
    recording.doubts.append("not stable")
    recording.stop()
    reasons = summarise(recording, of_window).invalid_reasons
    assert [reason.split(" ")[0] for reason in reasons] == ["not", "ended", "3", "4", "the"]


def test_wrong_answers_are_no_answers() -> None:
    judged = [Exchange(1, 1, 2, 200, verdict=verdict) for verdict in Verdict]
    summary = summary_of(judged, of_window)
    assert (summary.completed, summary.throughput_per_s) == (1, 0.1)
    assert summary.verdicts == {Verdict.RIGHT: 1, Verdict.WRONG: 1, Verdict.SWAPPED: 1}


def test_query_of_several_requests_is_answered_with_the_last_and_fails_with_any() -> None:
    samples = [Exchange(0, 0, 1, 200, sent_bytes=1), Exchange(0, 0.1, 3, 200, sent_bytes=2)]
    assert together(samples) == Exchange(0, 0, 3, 200, sent_bytes=3)
    failed = together([*samples, Exchange(0, 0.2, 0.3, 503, sent_bytes=4)])
    assert (failed.status, failed.answered_s, failed.is_good) == (503, 3, False)
