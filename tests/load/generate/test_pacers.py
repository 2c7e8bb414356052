"""Schedules, against numbers worked out by hand and against what a Poisson process is."""

from itertools import islice, pairwise, takewhile
from statistics import fmean, stdev

import pytest

from load.generate.pacers import Bursts, Constant, Pacer, Poisson, Replay


@pytest.mark.parametrize(
    ("pacer", "due_s", "rate_per_s", "text"),
    [
        (Constant(4), [0, 0.25, 0.5, 0.75, 1.0], 4, "4/s constant"),
        (Constant(0.5), [0, 2, 4, 6, 8], 0.5, "0.5/s constant"),
        (Bursts(4, 2), [0, 0, 0.5, 0.5, 1.0], 4, "4/s bursts of 2"),
        (Bursts(3, 1), [0, 1 / 3, 2 / 3, 1, 4 / 3], 3, "3/s bursts of 1"),
        (Replay((0.1, 0.3)), [0.1, 0.4, 0.5, 0.8, 0.9], 5, "5/s replayed"),
        (Replay((0.0, 0.5)), [0, 0.5, 0.5, 1.0, 1.0], 4, "4/s replayed"),
    ],
)
def test_pacer_of_a_kind_yields_its_schedule(pacer: Pacer, due_s: list[float], rate_per_s: float, text: str) -> None:
    assert list(islice(pacer.due_s(), 5)) == pytest.approx(due_s)
    assert pacer.rate_per_s == pytest.approx(rate_per_s)
    assert str(pacer) == text


def test_constant_after_ten_million_requests_has_not_drifted() -> None:
    assert next(islice(Constant(3).due_s(), 9_999_999, None)) == 9_999_999 / 3


def test_poisson_of_a_seed_is_the_same_every_time_and_of_another_is_not() -> None:
    first, again, other = (list(islice(Poisson(10, seed).due_s(), 50)) for seed in (1, 1, 2))
    assert first == again != other
    assert first == sorted(first)


def test_poisson_gaps_are_exponential() -> None:
    due_s = list(islice(Poisson(100, 7).due_s(), 20_001))
    gaps_s = [b - a for a, b in pairwise(due_s)]
    # An exponential distribution's mean is its standard deviation, and a share of 1/e exceeds it.
    assert fmean(gaps_s) == pytest.approx(0.01, rel=0.03)
    assert stdev(gaps_s) == pytest.approx(0.01, rel=0.03)
    assert fmean(gap_s > 0.01 for gap_s in gaps_s) == pytest.approx(0.3679, rel=0.03)
    assert len(list(takewhile(lambda due: due < 100, due_s))) == pytest.approx(10_000, rel=0.04)


@pytest.mark.parametrize("gaps_s", [(), (0.0, 0.0), (0.1, -0.1)])
def test_replay_of_no_schedule_is_refused(gaps_s: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="gaps"):
        Replay(gaps_s)
