"""Who is admitted, against answers whose times are known."""

import random

import pytest

from handlers.scheduling.admission import TUNING, Admission, PredictionErrors
from handlers.scheduling.policy import Policy
from handlers.scheduling.request_queue import ScheduledRequest

POLICY = Policy(max_latency_s=0.1, max_items=16)


def test_admission_learns_what_delivery_adds() -> None:
    admission = Admission(POLICY)
    for number in range(200):
        admission.learn(number * 0.01, 1, predicted_s=0.02, took_s=0.025, allowed_s=0.1, delivery_s=0.005)
    assert admission.predicted_s(0.02) == pytest.approx(0.025, rel=0.01)


def test_admission_of_one_priority_is_not_moved_by_the_answers_of_another() -> None:
    admission = Admission(POLICY)
    for number in range(100):
        admission.learn(number * 0.01, 3, predicted_s=0.02, took_s=0.05, allowed_s=0.1, delivery_s=0.0)
    assert admission.cautious_s(0.05, 3) == pytest.approx(0.08)
    assert admission.cautious_s(0.05, 1) == 0.05


def test_admission_after_the_worst_history_still_takes_what_is_well_below_the_target() -> None:
    admission = Admission(POLICY)
    for number in range(100):
        admission.learn(number * 0.01, 1, predicted_s=0.09, took_s=9.0, allowed_s=0.1, delivery_s=0.0)
    assert admission.cautious_s(0.04, 1) < 0.1


def test_deadline_broken_by_a_stall_that_nothing_foretold_is_no_reason_to_refuse_others() -> None:
    admission = Admission(POLICY)
    for number in range(200):
        took_s = 0.5 if number % 100 == 0 else 0.021 + number % 10 * 0.001
        admission.learn(number * 0.01, 1, predicted_s=0.02, took_s=took_s, allowed_s=0.1, delivery_s=0.0)
    # Most errors, of 1 to 10 ms, are covered.
    assert 0.097 < admission.cautious_s(0.09, 1) < 0.1


def test_deadline_that_was_expected_to_the_last_moment_and_broken_makes_admission_more_cautious() -> None:
    admission = Admission(POLICY)
    for number in range(200):
        took_s = 0.096 + number % 10 * 0.001
        admission.learn(number * 0.01, 1, predicted_s=0.095, took_s=took_s, allowed_s=0.1, delivery_s=0.0)
    assert admission.cautious_s(0.09, 1) == pytest.approx(0.1)


def test_errors_are_mostly_covered_while_nobody_is_late() -> None:
    errors = PredictionErrors()
    for number in range(100):
        errors.observe(number * 0.01, number / 100, is_broken=False)
    assert errors.covered_s == pytest.approx(0.84)


def test_errors_are_covered_so_that_in_the_long_run_as_few_answers_are_late_as_may_be() -> None:
    """Everybody is admitted to the last moment: an answer is late where it strays further than was covered."""
    errors, chosen = PredictionErrors(), random.Random(0)
    late = 0
    for number in range(40_000):
        error_s = chosen.gauss(0.0, 0.01)
        is_in_time = error_s <= errors.covered_s
        late += number >= 2000 and not is_in_time
        errors.observe(number * 0.01, error_s, is_broken=not is_in_time)
    assert 0.5 * TUNING.allowed_late <= late / 38_000 <= 2 * TUNING.allowed_late


def test_errors_after_many_late_answers_at_once_are_all_covered_for_as_long() -> None:
    errors = PredictionErrors()
    for number in range(50):
        errors.observe(1.0, number / 100, is_broken=number < 20)
    assert errors.covered_s == pytest.approx(0.49)
    for _ in range(100):
        errors.observe(1.0, 0.0, is_broken=False)
    assert errors.covered_s == pytest.approx(0.49)


def test_errors_of_a_stall_are_forgotten_after_a_while() -> None:
    errors = PredictionErrors()
    for _ in range(20):
        errors.observe(1.0, 3.0, is_broken=True)
    assert errors.covered_s == 3.0
    errors.observe(1.0 + TUNING.remembered_s + 0.1, 0.001, is_broken=False)
    assert errors.covered_s == 0.001


def test_refusals_one_after_the_other_say_when_the_engine_has_time_for_each() -> None:
    admission = Admission(POLICY)
    waits_s = []
    for _ in range(4):
        request = ScheduledRequest(slots=[], arrived_s=1.0, deadline_s=1.1)
        refusal = admission.overloaded(request, 0.15, own_s=0.02, is_idle=False)
        assert refusal is not None
        waits_s.append(refusal.retry_after_s)
    assert waits_s == pytest.approx([0.05, 0.07, 0.09, 0.11])
    later = ScheduledRequest(slots=[], arrived_s=9.0, deadline_s=9.1)
    refusal = admission.overloaded(later, 0.15, own_s=0.02, is_idle=False)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(0.05)
