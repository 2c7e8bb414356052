"""The latency model against lines that are known."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.scheduling.latency_model import LatencyModel

FIXED_S, TOKEN_S = 0.002, 0.00005


def true_s(tokens: int) -> float:
    return FIXED_S + TOKEN_S * tokens


def test_model_with_seeds_of_two_sizes_predicts_between_and_beyond_them() -> None:
    model = LatencyModel([(10, true_s(10)), (1000, true_s(1000))])
    assert model.predict_s(1) == pytest.approx(0.00205)
    assert model.predict_s(500) == pytest.approx(0.027)
    assert model.predict_s(2000) == pytest.approx(0.102)


def test_model_without_seeds_takes_a_pass_to_be_free_until_it_has_seen_one() -> None:
    model = LatencyModel()
    assert model.predict_s(100) == 0
    model.observe(100, 0.01)
    assert model.predict_s(100) == pytest.approx(0.01)


@pytest.mark.parametrize("times", [2.0, 10.0, 100.0])
@pytest.mark.parametrize("seed", range(5))
def test_model_with_one_interrupted_pass_in_ten_stays_within_a_tenth(seed: int, times: float) -> None:
    chosen = random.Random(seed)
    model = LatencyModel([(8, true_s(8)), (512, true_s(512))])
    for _ in range(200):
        tokens = chosen.randint(8, 2048)
        noise = chosen.uniform(0.95, 1.05) * (times if chosen.random() < 0.1 else 1)
        model.observe(tokens, true_s(tokens) * noise)
    for tokens in (8, 100, 512, 2048):
        assert model.predict_s(tokens) == pytest.approx(true_s(tokens), rel=0.1)


def test_model_of_a_machine_that_slows_down_follows_within_a_hundred_passes() -> None:
    model = LatencyModel([(8, true_s(8)), (512, true_s(512))])
    chosen = random.Random(1)
    for passes in range(300):
        tokens = chosen.randint(8, 1024)
        model.observe(tokens, true_s(tokens) * (1 if passes < 200 else 3))
    assert model.predict_s(512) == pytest.approx(3 * true_s(512), rel=0.15)


def test_model_that_saw_only_small_passes_for_long_still_knows_large_ones() -> None:
    model = LatencyModel([(8, true_s(8)), (1024, true_s(1024))])
    for _ in range(5000):
        model.observe(8, true_s(8))
    assert model.predict_s(1024) == pytest.approx(true_s(1024), rel=0.15)


def test_model_fed_one_size_only_never_predicts_less_than_nothing() -> None:
    model = LatencyModel()
    for _ in range(50):
        model.observe(64, 0.01)
    assert model.predict_s(64) == pytest.approx(0.01)
    assert 0 < model.predict_s(1) <= model.predict_s(64) <= model.predict_s(10_000)


def test_model_with_one_pass_in_five_half_as_long_again_warns_by_its_margin() -> None:
    model = LatencyModel([(8, true_s(8)), (512, true_s(512))])
    for passes in range(100):
        model.observe(100, true_s(100) * (1.5 if passes % 5 == 0 else 1))
    assert model.cautious_s(100) == pytest.approx(1.5 * true_s(100), rel=0.1)


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-6, 10)), max_size=60))
def test_model_of_any_history_predicts_neither_negative_nor_decreasing(history: list[tuple[int, float]]) -> None:
    model = LatencyModel()
    for tokens, seconds in history:
        model.observe(tokens, seconds)
    predicted = [model.predict_s(tokens) for tokens in (1, 10, 100, 1000)]
    assert predicted == sorted(predicted)
    assert predicted[0] >= 0
    assert 1 <= model.margin <= 2
