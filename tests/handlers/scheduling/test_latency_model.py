"""The latency model against lines that are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.scheduling.latency_model import LatencyModel
from tests.handlers.scheduling.simulation import model, true_s


def test_model_with_seeds_of_two_sizes_predicts_between_and_beyond_them() -> None:
    ours = model()
    for tokens in (1, 500, 2000):
        assert ours.predict_s(tokens) == pytest.approx(true_s(tokens))


def test_model_without_seeds_takes_a_micro_batch_for_free_until_it_has_seen_one() -> None:
    ours = LatencyModel()
    assert ours.predict_s(100) == 0
    ours.observe(100, 0.01)
    assert ours.predict_s(100) == pytest.approx(0.01)


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-6, 10)), max_size=60))
def test_model_of_any_history_predicts_neither_negative_nor_decreasing(history: list[tuple[int, float]]) -> None:
    ours = LatencyModel()
    for tokens, seconds in history:
        ours.observe(tokens, seconds)
    predicted = [ours.predict_s(tokens) for tokens in (1, 10, 100, 1000)]
    assert predicted == sorted(predicted)
    assert predicted[0] >= 0
