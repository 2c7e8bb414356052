"""Which answers are right."""

import json
from pathlib import Path
from typing import Any

import pytest

from load.errors import InputError
from load.generate.expect import Expected, matches, read
from load.generate.inputs import Input
from load.measure.exchange import Verdict

TWO = [Input(b"", name="cat.jpg"), Input(b"", name="cup.jpg")]


@pytest.mark.parametrize(
    ("expected", "answer", "is_right"),
    [
        ({"cat": 0.7}, {"cat": 0.705, "dog": 0.2}, True),
        ({"cat": 0.7}, {"cat": 0.75}, False),
        ({"cat": 0.7}, {"dog": 0.7}, False),
        # Less than the tolerance and gone: the last of the labels changes places.
        ({"cat": 0.7, "dog": 0.005}, {"cat": 0.7, "cow": 0.006}, True),
        ({"cat": 0.7, "dog": 0.5}, {"cat": 0.7}, False),
        ([{"label": "ko", "score": 1.0}], [{"label": "ko", "score": 0.999}], True),
        ([{"label": "ko", "score": 1.0}], [{"label": "ja", "score": 1.0}], False),
        ([1, 2], [1, 2, 3], False),
        ([1, 2], {"0": 1}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": "x"}, {}, False),
        (True, 1.0, False),
        (0.5, True, False),
        ("text", "text", True),
        ("text", "other", False),
    ],
)
def test_answer_matches_what_is_expected_of_it(expected: Any, answer: Any, is_right: bool) -> None:
    assert matches(expected, answer, 0.01) is is_right


@pytest.mark.parametrize(
    ("source", "answer", "verdict"),
    [
        (0, '{"cat": 0.9}', Verdict.RIGHT),
        (0, '{"cup": 0.8}', Verdict.SWAPPED),
        (1, '{"cup": 0.8}', Verdict.RIGHT),
        (1, '{"cup": 0.1}', Verdict.WRONG),
        (1, "not JSON", Verdict.WRONG),
    ],
)
def test_verdict_tells_a_wrong_answer_from_another_requests(source: int, answer: str, verdict: Verdict) -> None:
    expected = Expected([{"cat": 0.9}, {"cup": 0.8}])
    # Twice: the second is remembered.
    assert [expected.verdict(source, answer.encode()) for _ in range(2)] == [verdict, verdict]


@pytest.mark.parametrize(
    ("content", "inputs", "expected"),
    [
        ({"cat.jpg": {"cat": 1}, "cup.jpg": {"cup": 1}, "more": 0}, TWO, [{"cat": 1}, {"cup": 1}]),
        ({"cat": 1}, TWO[:1], [{"cat": 1}]),
        ([0.5, 0.5], TWO[:1], [[0.5, 0.5]]),
    ],
)
def test_expected_answers_are_read_by_name(tmp_path: Path, content: Any, inputs: list[Input], expected: Any) -> None:
    path = tmp_path / "expected.json"
    path.write_text(json.dumps(content))
    assert read(path, inputs) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ('{"cat.jpg": 1}', "no answer for cup.jpg"),
        ("[1]", "no answer for"),
    ],
)
def test_expected_answers_that_are_missing_say_so(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "expected.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read(path, TWO)


def test_answer_that_is_too_deep_to_parse_is_wrong() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert Expected([[1]], 0.01).verdict(0, deep) is Verdict.WRONG
