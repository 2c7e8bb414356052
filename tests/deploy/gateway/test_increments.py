"""Growth of counters between scrapes, and quantiles of histograms."""

import math

import pytest

from deploy.gateway.increments import Increments, quantile
from tests.deploy.gateway.canned import Series, series

ITEMS = series("handler_items_total", "m")
ERRORS = series("handler_item_errors_total", "m", Type="CorruptInput")


def test_first_scrape_of_a_node_is_where_counting_begins() -> None:
    assert Increments(300).observe(10.0, "a", {ITEMS: 5000.0}) is None


def test_growth_is_what_was_added_in_the_seconds_between() -> None:
    increments = Increments(300)
    increments.observe(10.0, "a", {ITEMS: 100.0})
    growth = increments.observe(12.0, "a", {ITEMS: 130.0})
    assert growth == (2.0, {ITEMS: 30.0})


def test_counter_that_fell_began_anew_at_zero() -> None:
    increments = Increments(300)
    increments.observe(10.0, "a", {ITEMS: 100.0})
    growth = increments.observe(12.0, "a", {ITEMS: 7.0})
    assert growth is not None and growth.series == {ITEMS: 7.0}


def test_series_that_is_new_on_a_known_node_began_at_zero() -> None:
    increments = Increments(300)
    increments.observe(10.0, "a", {ITEMS: 100.0})
    growth = increments.observe(12.0, "a", {ITEMS: 100.0, ERRORS: 3.0})
    assert growth is not None and growth.series == {ITEMS: 0.0, ERRORS: 3.0}


def test_node_that_missed_scrapes_is_measured_over_the_longer_time() -> None:
    increments = Increments(300)
    increments.observe(10.0, "a", {ITEMS: 100.0})
    assert increments.observe(20.0, "a", {ITEMS: 200.0}) == (10.0, {ITEMS: 100.0})


def test_node_that_is_gone_for_long_is_forgotten() -> None:
    increments = Increments(300)
    increments.observe(10.0, "a", {ITEMS: 100.0})
    increments.forget(311.0)
    assert increments.observe(312.0, "a", {ITEMS: 500.0}) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_no_number_is_left_out(value: float) -> None:
    increments = Increments(300)
    increments.observe(10.0, "a", {ITEMS: value})
    assert increments.observe(12.0, "a", {ITEMS: value}) == (2.0, {})


def test_clock_that_stands_still_measures_nothing() -> None:
    increments = Increments(300)
    increments.observe(10.0, "a", {ITEMS: 100.0})
    assert increments.observe(10.0, "a", {ITEMS: 130.0}) is None


@pytest.mark.parametrize(
    ("share", "buckets", "expected"),
    [
        # Values of Prometheus 2.42's histogram_quantile for the same buckets.
        (0.5, {0.1: 0, 0.2: 10, math.inf: 10}, 0.15),
        (0.5, {0.1: 10, 0.2: 20, math.inf: 20}, 0.1),
        (0.99, {0.1: 50, 0.2: 100, math.inf: 100}, 0.198),
        (0.99, {0.1: 50, 0.2: 60, math.inf: 100}, 0.2),
        (0.5, {0.1: 4, math.inf: 4}, 0.05),
        (0.5, {0.1: 0, math.inf: 0}, None),
        (0.5, {}, None),
    ],
)
def test_quantile_is_linear_within_its_bucket(
    share: float, buckets: dict[float, float], expected: float | None
) -> None:
    found = quantile(share, buckets)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_series_of_tests_have_the_labels_of_the_handlers() -> None:
    assert series("handler_items_total", "m") == Series("handler_items_total", frozenset({("ModelName", "m")}))
