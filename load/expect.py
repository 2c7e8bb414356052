"""Judges answers by the expected ones. Pure but for the file.

An answer is right when it contains the expected one, with numbers within a tolerance: an expected answer may have two
labels out of five. A wrong answer that is right for another input was swapped.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from load.errors import LoadError
from load.generate import Check
from load.inputs import Input
from load.results import Verdict

# Absolute difference of two numbers that are the same: the other items of a micro-batch move probabilities in bf16 by
# less.
TOLERANCE = 0.02
# Answers whose verdict is cached, so that they are not parsed again: some MB, and most answers of a run.
REMEMBERED = 10_000


def judge(answers: Sequence[Any], tolerance: float = TOLERANCE) -> Check:
    """Return what judges the answer to the input of a number by the right ones, which are as JSON parses them."""

    @lru_cache(maxsize=REMEMBERED)
    def verdict(source: int, body: bytes) -> Verdict:
        answer = parsed(body)
        if matches(answers[source], answer, tolerance):
            return Verdict.RIGHT
        return Verdict.SWAPPED if any(matches(each, answer, tolerance) for each in answers) else Verdict.WRONG

    return verdict


def parsed(body: bytes) -> Any:
    """Parse an answer as JSON; return its text where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def matches(expected: Any, answer: Any, tolerance: float) -> bool:
    """Return whether an answer has everything that is expected of it.

    A number that is expected under a name and missing counts as 0: the last of five labels changes places easily.
    """
    if isinstance(expected, dict):
        return isinstance(answer, dict) and all(
            matches(value, answer.get(name, 0 if _is_number(value) else None), tolerance)
            for name, value in expected.items()
        )
    if isinstance(expected, list):
        is_as_long = isinstance(answer, list) and len(answer) == len(expected)
        return is_as_long and all(matches(*pair, tolerance) for pair in zip(expected, answer, strict=True))
    if _is_number(expected):
        return _is_number(answer) and abs(expected - answer) <= tolerance
    # True is 1 to Python, and not to JSON.
    return type(expected) is type(answer) and bool(expected == answer)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read(path: Path, inputs: Sequence[Input]) -> list[Any]:
    """Read the expected answers from a JSON file {name of the input: answer}; of a single input, the answer will do.

    Raises:
        LoadError: the file cannot be read, or an input has no answer in it.
    """
    try:
        answers = json.loads(path.read_bytes())
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"{path} is not JSON: {error}") from error
    names = [item.name for item in inputs]
    missing = [name for name in names if not isinstance(answers, dict) or name not in answers]
    if missing and len(names) > 1:
        raise LoadError(f"{path} has no answer for {', '.join(missing[:3])}: write {{name of the input: answer, ...}}")
    return [answers] if missing else [answers[name] for name in names]
