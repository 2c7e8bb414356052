"""Compares answers with the expected ones. Pure, except for reading the file.

An answer is right if it contains the expected one, with numbers within a tolerance: an expected answer may have two
labels of five. A wrong answer that is right for another input was swapped.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from load import LoadError
from load.generate import Check
from load.inputs import Input
from load.results import Verdict

# Absolute difference of equal numbers: the other items of a micro-batch change probabilities in bf16 by less.
TOLERANCE = 0.02
CACHED = 10_000  # answers with a cached verdict, which saves parsing: some MB, and most answers of a run


def make_check(answers: Sequence[object], tolerance: float = TOLERANCE) -> Check:
    """Return a check of answers by the expected ones, which are parsed JSON, in the order of the inputs."""

    @lru_cache(maxsize=CACHED)
    def check(source: int, body: bytes) -> Verdict:
        answer = parse(body)
        if matches(answers[source], answer, tolerance):
            return Verdict.RIGHT
        return Verdict.SWAPPED if any(matches(each, answer, tolerance) for each in answers) else Verdict.WRONG

    return check


def parse(body: bytes) -> object:
    """Parse an answer as JSON; return its text if it is not valid."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def matches(expected: Any, answer: Any, tolerance: float) -> bool:
    """Return whether an answer contains the expected one; the least probable of five labels may be missing."""
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
    return type(expected) is type(answer) and bool(expected == answer)  # True equals 1 in Python, but not in JSON


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read(path: Path, inputs: Sequence[Input]) -> list[object]:
    """Read the expected answers from a JSON file {name of the input: answer}; for a single input, also its answer."""
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
