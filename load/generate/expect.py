"""Holds answers under load against the expected ones. Pure, but that it reads a file.

    {input's name: answer} -> Expected -> verdict(number of the input, body) -> RIGHT | WRONG | SWAPPED

An answer is right when it has everything that the expected one has, numbers within a tolerance: an expected answer may
name two labels out of five. An answer that is wrong, and right for another input, was swapped.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load.errors import InputError
from load.generate.inputs import Input
from load.measure.exchange import Verdict


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how answers are held against each other."""

    # Absolute difference of two numbers that are the same: the other items of a micro-batch move probabilities in bf16
    # by less.
    tolerance: float = 0.02
    # Answers whose verdict is remembered, so that they are not parsed again: some MB, and most of what a run sees.
    remembered: int = 10_000


TUNING = Tuning()


class Expected:
    """Judges answers; made for one list of inputs."""

    def __init__(self, answers: Sequence[Any], tolerance: float = TUNING.tolerance) -> None:
        """Take the right answers.

        Args:
            answers: the right answers, by number of the input.
            tolerance: most that a number in an answer may differ from the right one, absolutely.
        """
        self._answers = answers
        self._tolerance = tolerance
        self._judged: dict[tuple[int, bytes], Verdict] = {}

    def verdict(self, source: int, body: bytes) -> Verdict:
        """Judge an answer.

        Args:
            source: number of the input that it answers.
            body: the answer's bytes.
        """
        key = (source, body)
        verdict = self._judged.get(key)
        if verdict is None:
            verdict = self._judge(source, parsed(body))
            if len(self._judged) < TUNING.remembered:
                self._judged[key] = verdict
        return verdict

    def _judge(self, source: int, answer: Any) -> Verdict:
        if matches(self._answers[source], answer, self._tolerance):
            return Verdict.RIGHT
        is_anothers = any(matches(other, answer, self._tolerance) for other in self._answers)
        return Verdict.SWAPPED if is_anothers else Verdict.WRONG


def parsed(body: bytes) -> Any:
    """Parse an answer as JSON; return its text where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def matches(expected: Any, answer: Any, tolerance: float) -> bool:
    """Return whether an answer has everything that is expected of it.

    A number that is expected under a name and missing counts as 0: the last of five labels changes places easily.

    Args:
        expected: the expected answer, as JSON parses it.
        answer: the answer, likewise.
        tolerance: most that two numbers may differ, absolutely.
    """
    if isinstance(expected, dict):
        return isinstance(answer, dict) and all(
            matches(value, answer.get(name, 0 if _is_number(value) else None), tolerance)
            for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(answer, list)
            and len(answer) == len(expected)
            and all(matches(mine, its, tolerance) for mine, its in zip(expected, answer, strict=True))
        )
    if _is_number(expected):
        return _is_number(answer) and abs(expected - answer) <= tolerance
    # True is 1 to Python, and not to JSON.
    return type(expected) is type(answer) and bool(expected == answer)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read(path: Path, inputs: Sequence[Input]) -> list[Any]:
    """Read expected answers.

    Args:
        path: a JSON file {name of the input: answer, ...}; where there is one input, its answer alone will do.
        inputs: what is sent.

    Returns:
        The expected answers by number of the input.

    Raises:
        InputError: the file cannot be read, or an input has no answer in it.
    """
    try:
        answers = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    names = [item.name for item in inputs]
    if isinstance(answers, dict) and all(name in answers for name in names):
        return [answers[name] for name in names]
    if len(names) == 1:
        return [answers]
    missing = [name for name in names if not isinstance(answers, dict) or name not in answers]
    raise InputError(f"{path} has no answer for {', '.join(missing[:3])}: write {{name of the input: answer, ...}}")
