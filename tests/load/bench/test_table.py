"""The table, cell by cell."""

import pytest

from load.bench.table import Bound, Row, differences, ratios, render, spread

ROWS = [
    Row("images/s: ours / stock", [4.0, 5.0, 6.0], [40.0, 45.0, 42.0], [], [10.0, 9.0, 7.0], bound=Bound(7, True)),
    Row("p50 in ms: ours - in-process", [], [30.0], [20.0], [10.0], digits=0, bound=Bound(8, False)),
    Row("memory", [2.0], [1.0], [], [0.5]),
]

TEXT = """\
measured                      stock           ours               in-process  compared            wanted
----------------------------  --------------  -----------------  ----------  ------------------  ------  -----
images/s: ours / stock        5.0 (4.0..6.0)  42.0 (40.0..45.0)              9.00 (7.00..10.00)  >= 7    ok
p50 in ms: ours - in-process                  30                 20          10.00               <= 8    short
memory                        2.0             1.0                            0.50
"""


def test_render_as_text_aligns_and_judges() -> None:
    assert render(ROWS) + "\n" == TEXT


def test_render_as_markdown_has_a_header_a_rule_and_as_many_cells_in_every_row() -> None:
    lines = render(ROWS, is_markdown=True).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["measured", "stock", "ours", "in-process", "compared", "wanted", ""]
    assert all(set(cell) == {"-"} for cell in cells[1])
    assert cells[3] == ["p50 in ms: ours - in-process", "", "30", "20", "10.00", "<= 8", "short"]
    assert {len(row) for row in cells} == {7}


def test_render_as_markdown_without_bounds_keeps_a_rule_in_the_empty_column() -> None:
    rule = render(ROWS[2:], is_markdown=True).splitlines()[1]
    assert rule.endswith(" - |")


@pytest.mark.parametrize(
    ("bound", "value", "is_met", "text"),
    [
        (Bound(0.92, is_minimum=True), 0.92, True, ">= 0.92"),
        (Bound(0.92, is_minimum=True), 0.919, False, ">= 0.92"),
        (Bound(8, is_minimum=False), 8.0, True, "<= 8"),
        (Bound(8, is_minimum=False), 8.01, False, "<= 8"),
        (Bound(8, is_minimum=False), -3.0, True, "<= 8"),
    ],
)
def test_bound_at_its_limit_is_met(bound: Bound, value: float, is_met: bool, text: str) -> None:
    assert (bound.is_met(value), str(bound)) == (is_met, text)


def test_row_judges_the_median_of_ratios_not_the_ratio_of_medians() -> None:
    ours, stock = [10.0, 30.0, 20.0], [1.0, 10.0, 4.0]
    row = Row("", stock, ours, [], ratios(ours, stock), bound=Bound(5, is_minimum=True))
    assert row.cells()[4:] == ("5.00 (3.00..10.00)", ">= 5", "ok")


@pytest.mark.parametrize(
    ("series", "digits", "text"),
    [([], 1, ""), ([1.26], 1, "1.3"), ([3.0, 1.0], 1, "2.0 (1.0..3.0)"), ([3.0, 1.0, 9.0], 0, "3 (1..9)")],
)
def test_spread_of_a_series_is_median_and_range(series: list[float], digits: int, text: str) -> None:
    assert spread(series, digits) == text


def test_comparison_pairs_rounds_and_refuses_unequal_numbers_of_them() -> None:
    assert ratios([6.0, 8.0], [2.0, 4.0]) == [3.0, 2.0]
    assert differences([6.0, 8.0], [2.0, 9.0]) == [4.0, -1.0]
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [])
