"""A latency model after the engine has changed speed, or run one size for long."""

import random
from collections.abc import Iterable

import pytest

from handlers.batching.engine import LatencyModel
from tests.handlers.batching.simulation import model, true_s

SIZES = (10, 40, 160, 1000)


def run(known: LatencyModel, times: float, count: int, sizes: Iterable[int] = SIZES) -> None:
    """Observe micro-batches of an engine that is so many times slower, with 5 % of noise."""
    chosen, tokens = random.Random(0), list(sizes)
    for number in range(count):
        size = tokens[number % len(tokens)]
        known.observe(size, times * true_s(size) * chosen.lognormvariate(0.0, 0.05))


def assert_knows(known: LatencyModel, times: float, within: float = 0.15) -> None:
    for tokens in SIZES:
        assert known.line.predict_s(tokens) == pytest.approx(times * true_s(tokens), rel=within), tokens


@pytest.mark.parametrize("times", [1 / 3, 3.0])
def test_engine_that_drifts_is_known_after_two_hundred_micro_batches(times: float) -> None:
    known = model()
    run(known, 1.0, 200)
    assert_knows(known, 1.0)
    run(known, times, 200)
    assert_knows(known, times)


def test_what_large_micro_batches_take_is_known_after_a_long_spell_of_small_ones() -> None:
    known = model()
    run(known, 1.0, 100)
    run(known, 1.0, 2000, sizes=[10])
    assert_knows(known, 1.0, within=0.3)
