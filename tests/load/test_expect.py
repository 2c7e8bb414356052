"""Checks of answers."""

import json
from pathlib import Path
from typing import Any

from load.expect import make_check, matches, read
from load.inputs import Input
from load.results import Verdict
from tests.tables import table

TWO = [Input(b"", name="cat.jpg"), Input(b"", name="cup.jpg")]


@table(
    ({"cat": 0.7}, {"cat": 0.705, "dog": 0.2}, True),
    ({"cat": 0.7}, {"cat": 0.75}, False),
    ({"cat": 0.7}, {"dog": 0.7}, False),
    # A missing number below the tolerance: the least probable label may change.
    ({"cat": 0.7, "dog": 0.005}, {"cat": 0.7, "cow": 0.006}, True),
    ({"cat": 0.7, "dog": 0.5}, {"cat": 0.7}, False),
    ([{"label": "ko", "score": 1.0}], [{"label": "ja", "score": 1.0}], False),
    ([1, 2], [1, 2, 3], False),
    (True, 1.0, False),
    (0.5, True, False),
    ("text", "other", False),
)
def test_answer_matches_what_is_expected_of_it(expected: Any, answer: Any, is_right: bool) -> None:
    assert matches(expected, answer, 0.01) is is_right


@table(
    (0, b'{"cat": 0.9}', Verdict.RIGHT),
    (0, b'{"cup": 0.8}', Verdict.SWAPPED),
    (1, b'{"cup": 0.8}', Verdict.RIGHT),
    (1, b'{"cup": 0.1}', Verdict.WRONG),
    (1, b"not JSON", Verdict.WRONG),
    (1, b"[" * 100_000, Verdict.WRONG),
)
def test_wrong_answer_is_told_from_another_requests(source: int, answer: bytes, verdict: Verdict) -> None:
    check = make_check([{"cat": 0.9}, {"cup": 0.8}])
    # Twice: the second verdict is cached.
    assert [check(source, answer) for _ in range(2)] == [verdict, verdict]


@table(
    ({"cat.jpg": {"cat": 1}, "cup.jpg": {"cup": 1}, "more": 0}, TWO, [{"cat": 1}, {"cup": 1}]),
    ({"cat": 1}, TWO[:1], [{"cat": 1}]),
    ([0.5, 0.5], TWO[:1], [[0.5, 0.5]]),
)
def test_expected_answers_are_read_by_name(content: Any, inputs: list[Input], expected: Any, tmp_path: Path) -> None:
    (tmp_path / "expected.json").write_text(json.dumps(content))
    assert read(tmp_path / "expected.json", inputs) == expected
