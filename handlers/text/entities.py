"""Group scored tokens into entities, as transformers' TokenClassificationPipeline does. Pure.

tokens of a text -> find_entities -> none: every token has its label
                                     simple: neighbours of one label are joined
                                     first, average, max: tokens of a word agree on a label, then neighbours are joined
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Json
from handlers.text.config import Aggregation

Join = Callable[[list[str]], str]  # joins tokens to text, as the tokenizer's decoder does


@dataclass(frozen=True, slots=True)
class Token:
    """One token that is not special, or one word."""

    word: str  # as the vocabulary has it, or the text of a word
    scores: NDArray[np.floating[Any]]  # (labels,) probabilities
    index: int  # among the text's tokens, special ones included
    start: int  # index of its first character in the text
    end: int  # index behind its last character
    is_subword: bool = False  # whether it continues the word of the token before it


@dataclass(frozen=True, slots=True)
class LabelledToken:
    """A token or word with its label, and that label's score."""

    token: Token
    label: str
    score: float

    @property
    def name(self) -> str:
        """The entity's name: the label without "B-" or "I-"."""
        return self.label[2:] if self.label.startswith(("B-", "I-")) else self.label


def find_entities(
    tokens: Iterable[Token],
    labels: Mapping[int, str],
    aggregation: Aggregation,
    join: Join,
    ignored: Collection[str],
) -> list[Json]:
    """Label tokens and group them: {"entity", "index", ...} per token, {"entity_group", ...} per group."""
    if aggregation in ("first", "average", "max"):
        tokens = [_join_word(word, aggregation, join) for word in _group_runs(tokens, lambda _, each: each.is_subword)]
    labelled = []
    for token in tokens:
        best = int(token.scores.argmax())
        labelled.append(LabelledToken(token, labels[best], float(token.scores[best])))
    if aggregation != "none":
        # Neighbours of one name are a group; its name is the part of its first label after the first hyphen.
        runs = _group_runs(labelled, lambda before, item: not item.label.startswith("B-") and item.name == before.name)
        return [_entity(name, run, join) for run in runs if (name := run[0].label.split("-", 1)[-1]) not in ignored]
    return [
        {
            "entity": item.label,
            "score": item.score,
            "index": item.token.index,
            "word": item.token.word,
            "start": item.token.start,
            "end": item.token.end,
        }
        for item in labelled
        if item.label not in ignored
    ]


def merge_windows(found: Sequence[list[Json]]) -> list[Json]:
    """Join the entities of overlapping windows: of two that overlap, the longer one stays, or else the likelier one."""
    if len(found) == 1:
        return found[0]
    merged: list[Json] = []
    for entity in sorted((each for window in found for each in window), key=itemgetter("start")):
        if not merged or entity["start"] >= merged[-1]["end"]:
            merged.append(entity)
        elif _weight(entity) > _weight(merged[-1]):
            merged[-1] = entity
    return merged


def _weight(entity: Json) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


def _group_runs(items: Iterable[object], continues: Callable[[Any, Any], bool]) -> list[list[Any]]:
    """Group neighbours while each continues the one before it."""
    runs: list[list[Any]] = []
    for item in items:
        if runs and continues(runs[-1][-1], item):
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def _join_word(tokens: list[Token], aggregation: Aggregation, join: Join) -> Token:
    """Join the tokens of a word, with the scores of the first, of the most certain, or their mean."""
    if aggregation == "first":
        scores = tokens[0].scores
    elif aggregation == "max":
        scores = max(tokens, key=lambda token: float(token.scores.max())).scores
    else:
        scores = np.mean([token.scores for token in tokens], axis=0)
    return Token(join([token.word for token in tokens]), scores, tokens[0].index, tokens[0].start, tokens[-1].end)


def _entity(name: str, run: list[LabelledToken], join: Join) -> Json:
    return {
        "entity_group": name,
        "score": fmean(item.score for item in run),
        "word": join([item.token.word for item in run]),
        "start": run[0].token.start,
        "end": run[-1].token.end,
    }
