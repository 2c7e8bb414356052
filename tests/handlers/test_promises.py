"""What a newcomer is promised, against answers whose times are known."""

import random

import pytest

from handlers.promises import REMEMBERED_S, Errors, Promises


def test_promise_learns_what_delivery_adds() -> None:
    promises = Promises(target_s=0.1)
    for number in range(200):
        promises.kept(number * 0.01, 1, predicted_s=0.01, took_s=0.015, delivery_s=0.005)
    assert promises.predicted_s(0.02) == pytest.approx(0.025, rel=0.01)


def test_promise_to_one_priority_is_not_moved_by_the_answers_of_another() -> None:
    promises = Promises(target_s=0.1)
    for number in range(100):
        promises.kept(number * 0.01, 3, predicted_s=0.06, took_s=0.09, delivery_s=0.0)
    assert promises.cautious_s(0.05, 3) == pytest.approx(0.08)
    assert promises.cautious_s(0.05, 1) == 0.05


def test_promise_after_the_worst_history_still_takes_what_is_well_below_the_target() -> None:
    promises = Promises(target_s=0.1)
    for number in range(100):
        promises.kept(number * 0.01, 1, predicted_s=0.01, took_s=9.0, delivery_s=0.0)
    assert promises.cautious_s(0.04, 1) < 0.1


def test_errors_leave_one_answer_in_a_hundred_beyond_their_quantile() -> None:
    errors, chosen = Errors(), random.Random(0)
    beyond = 0
    for number in range(20_000):
        error_s = chosen.gauss(0.0, 0.01)
        beyond += number >= 1000 and error_s > errors.quantile_s
        errors.observe(number * 0.01, error_s)
    assert 0.007 <= beyond / 19_000 <= 0.018


def test_errors_of_a_stall_are_forgotten_after_a_while() -> None:
    errors = Errors()
    for _ in range(20):
        errors.observe(1.0, 3.0)
    assert errors.quantile_s == 3.0
    errors.observe(1.0 + REMEMBERED_S + 0.1, 0.001)
    assert errors.quantile_s == 0.001
