"""Ratios and their intervals, against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest

from load.runs.compare import Ratio, compare, is_interleaved, remarks
from load.runs.run_file import Run
from tests.load.stored_runs import invalid, run


def test_ratio_of_repeats_is_their_geometric_mean_with_students_interval() -> None:
    ratio = Ratio.of([10, 10, 10], [20, 40, 80])
    assert ratio.mean == pytest.approx(4)
    # Logarithms to base 2 are 1, 2, 3: mean 2, deviation 1; t of 2 degrees of freedom is 4.303.
    assert math.log2(ratio.high) == pytest.approx(2 + 4.303 / math.sqrt(3))
    assert math.log2(ratio.low) == pytest.approx(2 - 4.303 / math.sqrt(3))
    assert not ratio.is_different


@pytest.mark.parametrize(
    ("base", "other", "is_different"),
    [([10, 11], [10, 11], False), ([10, 11, 12], [20, 22, 24.1], True), ([10], [20], False)],
)
def test_ratio_differs_where_its_interval_leaves_out_1(
    base: list[float], other: list[float], is_different: bool
) -> None:
    assert Ratio.of(base, other).is_different is is_different


def test_comparison_of_two_runs_pairs_repeats() -> None:
    rows = compare(run("a", 50, 60), run("b", 100, 90))
    assert [(row.load, row.quantity) for row in rows] == [
        ("8 clients", name) for name in ("throughput 1/s", "goodput 1/s", "p50 ms", "p99 ms")
    ]
    assert (rows[0].base, rows[0].other) == (55, 95)
    assert rows[0].ratio.mean == pytest.approx(math.sqrt(2 * 1.5))


def test_comparison_leaves_out_what_is_not_valid_and_says_so() -> None:
    base, other = run("a", 50, 60), run("b", 100, 90)
    other = replace(other, steps=[other.steps[0], invalid(other.steps[1])])
    rows = compare(base, other)
    assert rows[0].ratio == Ratio(2, 2, 2, 1)
    assert remarks(base, other, rows) == [
        "one repeat says nothing about chance: measure both with --repeats 5",
        "left out: 1 steps that are not valid",
    ]


def shifted(original: Run, minutes: int) -> Run:
    """The same run, begun later."""
    steps = [replace(s, started_at=f"2026-01-01T00:{s.repeat + minutes:02}:30.000+00:00") for s in original.steps]
    return replace(original, steps=steps)


@pytest.mark.parametrize(("minutes", "expected"), [(0, True), (5, False)])
def test_runs_taken_in_turn_are_told_from_one_after_the_other(minutes: int, expected: bool) -> None:
    base, other = run("a", 50, 60, 55), shifted(run("b", 100, 90, 95), minutes)
    assert is_interleaved(base, other) is expected
    assert any("not measured in turn" in line for line in remarks(base, other, compare(base, other))) is not expected


def test_comparison_of_runs_that_share_no_load_says_so() -> None:
    base, other = run("a", 50), replace(run("b"), steps=run("b").steps[1:])
    assert compare(base, other) == []
    assert "nothing to compare" in remarks(base, other, [])[0]
