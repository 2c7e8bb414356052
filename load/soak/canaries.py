"""Canaries: inputs whose answers are told apart from each other, and the answer that each of them must show.

candidates, each asked alone -> chosen: those no two of which could be taken for each other -> Canaries.verdict

An answer is right when it is its own canary's, within the task's tolerance; swapped when it is another canary's, of
whatever model; and wrong when it is nobody's. Pure, but for `asked_alone`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load.generate.expect import matches, parsed
from load.generate.inputs import Input
from load.measure.exchange import Verdict
from load.runs.served import Served


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how canaries are told apart."""

    # Two answers are unlike when they differ by this many tolerances, so that none can be right for both.
    apart: float = 3.0
    # Canaries of a model that are kept at most: 1 in 48 crossed answers meets its own input by chance.
    most: int = 48
    # Fewer than that would hide one crossed answer in eight.
    least: int = 8


TUNING = Tuning()
# Answers that say nothing, and must not pass for anybody's.
NOTHING: tuple[Any, ...] = ({}, [], None, "")

# Most that a number of an answer may differ from that of the canary alone. Embeddings come in bf16, where the texts of
# a micro-batch move a component of some 0.05 by less than 0.01; the others are fp32 whose sums change their order.
TOLERANCES = {"sentence_embedding": 0.02, "image_classification": 0.003, "language_id": 0.0005}


@dataclass(frozen=True, slots=True)
class Canary:
    """One input and its own answer.

    Attributes:
        content: what is sent.
        answer: what came back when it was asked alone, as JSON parses it.
        tolerance: most that a number may differ from it.
    """

    content: Input
    answer: Any
    tolerance: float

    def shows(self, answer: Any, tolerances: float = 1.0) -> bool:
        """Whether an answer is this canary's."""
        return matches(self.answer, answer, tolerances * self.tolerance)


def asked_alone(served: Served, contents: Sequence[Input], task: str) -> list[Canary]:
    """Ask each by itself, one after the other.

    Raises:
        NotServed: one is not answered with 200.
    """
    return [Canary(content, parsed(served.ask(content)), TOLERANCES[task]) for content in contents]


def chosen(canaries: Sequence[Canary], most: int = TUNING.most) -> list[Canary]:
    """Keep those, in their order, that are told apart from all that were kept before, and from no answer at all."""
    kept: list[Canary] = []
    for canary in canaries:
        if len(kept) == most:
            break
        is_empty = any(canary.shows(nothing, TUNING.apart) for nothing in NOTHING)
        if not is_empty and not any(_alike(canary, other) for other in kept):
            kept.append(canary)
    return kept


def _alike(one: Canary, other: Canary) -> bool:
    return one.shows(other.answer, TUNING.apart) or other.shows(one.answer, TUNING.apart)


class Canaries:
    """Those of every model."""

    def __init__(self, by_model: Mapping[str, Sequence[Canary]]) -> None:
        """Take what `chosen` gave, by the model's name.

        Raises:
            ValueError: a model has so few that a crossed answer could go unseen.
        """
        for model, canaries in by_model.items():
            if len(canaries) < TUNING.least:
                raise ValueError(f"{model}: {len(canaries)} canaries can be told apart, {TUNING.least} are needed")
        self.by_model = by_model

    def verdict(self, model: str, source: int, body: bytes) -> Verdict:
        """Judge an answer with status 200.

        Args:
            model: name of the model that was asked.
            source: number of its canary.
            body: the answer's bytes.
        """
        return self.judge(model, source, parsed(body))

    def judge(self, model: str, source: int, answer: Any) -> Verdict:
        """Judge an answer that is parsed, or one item of a list's; see `verdict`."""
        if self.by_model[model][source].shows(answer):
            return Verdict.RIGHT
        is_anothers = any(canary.shows(answer) for canaries in self.by_model.values() for canary in canaries)
        return Verdict.SWAPPED if is_anothers else Verdict.WRONG
