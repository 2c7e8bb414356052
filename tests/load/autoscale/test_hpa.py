"""The HPA's and KEDA's algorithm, case by case, as their documents and sources have it."""

from dataclasses import replace

import pytest

from load.autoscale.scaled_object import Direction, Policy, Query, ScaledObject
from load.autoscale.simulation.hpa import Autoscaler, proposed

FREE = Direction(0, (Policy("Pods", 100, 15),))
ONE = Query("in-flight", "x[1m]", 10, ignores_nulls=False)
RULES = ScaledObject(
    min_replicas=1,
    max_replicas=50,
    failures=3,
    fallback_replicas=6,
    keeps_current=True,
    up=FREE,
    down=FREE,
    triggers=(ONE,),
)


@pytest.mark.parametrize(
    ("value", "current", "replicas"),
    [
        (80, 4, 8),  # 20 each where 10 are wanted: twice as many (Kubernetes' own example, 200m to 100m)
        (20, 4, 2),  # 5 each: half
        (43.9, 4, 4),  # a tenth too much is right
        (44.1, 4, 5),
        (36.1, 4, 4),  # and a tenth too little
        (35.9, 4, 4),  # rounded up
        (29.9, 4, 3),
        (0, 4, 0),  # the bounds are not this one's
    ],
)
def test_a_metric_asks_for_its_sum_over_the_target_rounded_up(value: float, current: int, replicas: int) -> None:
    assert proposed(value, 10, current) == replicas


def test_the_largest_of_several_wins() -> None:
    rules = replace(RULES, triggers=(ONE, replace(ONE, threshold=75)))
    assert Autoscaler(rules).decide(0, 4, [30, 600]) == 8
    assert Autoscaler(rules).decide(0, 4, [90, 600]) == 9


def test_bounds_hold() -> None:
    assert Autoscaler(RULES).decide(0, 4, [0]) == 1
    assert Autoscaler(RULES).decide(0, 4, [9999]) == 50


def test_fewer_replicas_wait_until_the_window_is_over() -> None:
    """The most that was asked for within 300 s counts."""
    autoscaler = Autoscaler(replace(RULES, down=Direction(300, FREE.policies)))
    assert autoscaler.decide(0, 2, [80]) == 8
    decided = [autoscaler.decide(now, 8, [20 if now < 150 else 60]) for now in (15, 150, 285)]
    assert decided == [8, 8, 8]
    assert autoscaler.decide(315, 8, [20]) == 6
    assert autoscaler.decide(465, 6, [20]) == 6
    assert autoscaler.decide(600, 6, [20]) == 2


def test_policies_bound_the_change_of_a_period() -> None:
    """25 % of 8 in a minute are 2, from what there was a minute ago; 4 Pods up in 15 s, or twice as many."""
    down = Direction(0, (Policy("Percent", 25, 60),))
    up = Direction(0, (Policy("Pods", 4, 15), Policy("Percent", 100, 15)))
    autoscaler = Autoscaler(replace(RULES, up=up, down=down))
    assert [autoscaler.decide(0, 8, [10]), autoscaler.decide(15, 6, [10]), autoscaler.decide(61, 6, [10])] == [6, 6, 4]
    autoscaler = Autoscaler(replace(RULES, up=up))
    assert [autoscaler.decide(0, 1, [400]), autoscaler.decide(15, 5, [400]), autoscaler.decide(30, 10, [400])] == [
        5,
        10,
        20,
    ]


def test_one_of_two_replicas_may_go_by_a_quarter() -> None:
    """What is left is cut off at the point: 1.5 is 1."""
    autoscaler = Autoscaler(replace(RULES, down=Direction(0, (Policy("Percent", 25, 60),))))
    assert autoscaler.decide(0, 2, [1]) == 1


def test_missing_metric_scales_nothing_down_and_others_scale_up() -> None:
    rules = replace(RULES, triggers=(ONE, ONE), fallback_replicas=None)
    assert Autoscaler(rules).decide(0, 4, [None, None]) == 4
    assert Autoscaler(rules).decide(0, 4, [None, 5]) == 4
    assert Autoscaler(rules).decide(0, 4, [None, 90]) == 9


@pytest.mark.parametrize(
    ("current", "keeps_current", "expected"),
    [(4, True, 6), (9, True, 9), (9, False, 6)],
)
def test_fallback_follows_the_fourth_failure(current: int, keeps_current: bool, expected: int) -> None:
    autoscaler = Autoscaler(replace(RULES, keeps_current=keeps_current))
    decided = [autoscaler.decide(15 * number, current, [None]) for number in range(4)]
    assert decided == [current, current, current, expected]


def test_fallback_of_a_target_below_one_is_the_minimum() -> None:
    """Why targets are whole numbers: KEDA multiplies the whole part of it."""
    autoscaler = Autoscaler(replace(RULES, triggers=(replace(ONE, threshold=0.75),)))
    assert [autoscaler.decide(15 * number, 9, [None]) for number in range(4)][-1] == 1


def test_null_that_is_ignored_is_no_traffic() -> None:
    autoscaler = Autoscaler(replace(RULES, triggers=(replace(ONE, ignores_nulls=True),)))
    assert autoscaler.decide(0, 9, [None]) == 1
