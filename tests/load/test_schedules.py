"""Schedules, compared with numbers worked out by hand and with properties of a Poisson process."""

from itertools import islice, pairwise
from statistics import fmean, stdev

import pytest

from load.schedules import Poisson


def test_poisson_gaps_are_exponential_and_those_of_the_seed() -> None:
    due_s = list(islice(Poisson(100, 7).due_s(), 20_001))
    assert due_s == list(islice(Poisson(100, 7).due_s(), 20_001))
    assert due_s[:10] != list(islice(Poisson(100, 8).due_s(), 10))
    gaps_s = [b - a for a, b in pairwise(due_s)]
    # An exponential distribution's mean is its standard deviation, and a share of 1/e exceeds it.
    assert fmean(gaps_s) == pytest.approx(0.01, rel=0.03)
    assert stdev(gaps_s) == pytest.approx(0.01, rel=0.03)
    assert fmean(gap_s > 0.01 for gap_s in gaps_s) == pytest.approx(0.3679, rel=0.03)
