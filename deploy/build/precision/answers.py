"""Answers in one precision, as they can be compared with those in another.

    items -> micro-batches -> the task's collate and forward, on an engine -> its outputs -> an answer for each item
    answers in fp32, answers in another precision -> compared -> handlers.proofs.Proof

What is compared is what the field compares. Of an image its likeliest class. Of a text its likeliest label; where
labels are decided one by one, the yes or no to each. Of a token, special ones apart, its likeliest label: by equal
entities a text of fifty tokens would count as wrong for one of them. Of a question the place of its answer, exactly. Of
a sentence its vector, by the cosine. Of a segmented image its map, by the mean intersection over union of a class over
all images. Of pairs their order by score, by Spearman's rank correlation.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from handlers.engines import Engine
from handlers.pipeline.micro_batches import micro_batches
from handlers.probabilities import sigmoid, softmax
from handlers.proofs import Measure, Proof

Array = NDArray[np.floating[Any]]

# Items of a micro-batch: enough for speed, and in fp32 little memory.
BATCH = 16


class Span(NamedTuple):
    """The answer to a question: where it stands in the context, in characters, and how probable it is."""

    start: int
    end: int
    score: float


class Kind(NamedTuple):
    """How the answers of a task are compared.

    Attributes:
        measure: as a proof names it.
        read: takes the loaded task, its outputs and its items; gives an answer for each item, such as `compare` takes.
        compare: takes the answers in fp32 and the others; gives agreement, largest change, and the samples.
        is_text: whether its inputs are texts.
        settings: those that answers are made under, whatever the archive's are.
    """

    measure: Measure
    read: Callable[[Any, Mapping[str, Any], Sequence[Any]], Sequence[Any]]
    compare: Callable[[Sequence[Any], Sequence[Any]], tuple[float, float, int]]
    is_text: bool = True
    settings: Mapping[str, Any] = {}


def ask(task: Any, items: Sequence[Any], engine: Engine, longest_s: float = float("inf")) -> list[Any]:
    """Answer items on an engine.

    Args:
        task: loaded; its hooks are used, and this engine.
        items: decoded.
        engine: runs the model in some precision.
        longest_s: what is not answered by then, in seconds, is left out; the first micro-batch never is.

    Returns:
        An answer for each item; in order, those that were left out at the end.
    """
    started = time.perf_counter()
    answers: list[Any] = []
    for first in range(0, len(items), BATCH):
        if answers and time.perf_counter() - started > longest_s:
            break
        answers += _ask(task, items[first : first + BATCH], engine)
    return answers


def _ask(task: Any, items: Sequence[Any], engine: Engine) -> list[Any]:
    kind = KINDS[type(task).__module__.rpartition(".")[2]]
    task.engine = engine
    found: dict[int, Any] = {}
    for indices in micro_batches([task.cost(item) for item in items], BATCH, task.config.max_tokens):
        some = [items[index] for index in indices]
        outputs = task.forward(task.collate(some), some)
        found |= dict(zip(indices, kind.read(task, outputs, some), strict=True))
    return [found[index] for index in range(len(items))]


def proof(handler: str, exact: Sequence[Any], answers: Sequence[Any], least: float) -> Proof:
    """Hold answers against those in fp32.

    Args:
        handler: the task's name.
        exact, answers: of the same items, at least one; the first in fp32.
        least: the agreement that is asked for.
    """
    kind = KINDS[handler]
    agreement, change, samples = kind.compare(exact, answers)
    return Proof(kind.measure, round(agreement, 6), round(change, 6), samples, least)


def compared_rows(exact: Sequence[Array], others: Sequence[Array]) -> tuple[float, float, int]:
    """Compare probabilities, (rows, classes) of each item: the share of rows whose likeliest class is the same."""
    ours, theirs = np.concatenate(exact), np.concatenate(others)
    is_number = np.isfinite(theirs).all(axis=1)
    same = is_number & (ours.argmax(axis=1) == theirs.argmax(axis=1))
    # What is no number has changed as much as a probability can.
    changes = np.where(np.isfinite(theirs), np.abs(ours - theirs), 1.0)
    return float(same.mean()), float(changes.max()), len(ours)


def compared_spans(exact: Sequence[Span], others: Sequence[Span]) -> tuple[float, float, int]:
    """Compare answers to questions: the share of those at the same place."""
    same = [ours[:2] == theirs[:2] for ours, theirs in zip(exact, others, strict=True)]
    changes = [abs(ours.score - theirs.score) for ours, theirs in zip(exact, others, strict=True)]
    return float(np.mean(same)), float(np.nan_to_num(changes, nan=1.0).max()), len(same)


def compared_vectors(exact: Sequence[Array], others: Sequence[Array]) -> tuple[float, float, int]:
    """Compare vectors, (D,) of each item: the mean cosine, and how far the least is from 1."""
    ours, theirs = np.stack(exact).astype(np.float64), np.stack(others).astype(np.float64)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    with np.errstate(all="ignore"):
        # What is no vector points nowhere.
        cosines = np.nan_to_num((ours * theirs).sum(axis=1) / lengths, nan=0.0, posinf=0.0, neginf=0.0)
    cosines = np.clip(cosines, -1.0, 1.0)
    return float(cosines.mean()), float(min(1.0, 1.0 - cosines.min())), len(cosines)


def compared_maps(exact: Sequence[Array], others: Sequence[Array]) -> tuple[float, float, int]:
    """Compare maps of classes, (H, W) of each item: the mean over the classes of the first of what both share."""
    ours, theirs = (np.concatenate([each.ravel() for each in maps]) for maps in (exact, others))
    shared = [
        ((ours == value) & (theirs == value)).sum() / ((ours == value) | (theirs == value)).sum()
        for value in np.unique(ours)
    ]
    changed = [float(np.mean(one != other)) for one, other in zip(exact, others, strict=True)]
    return float(np.mean(shared)), max(changed), len(changed)


def compared_ranks(exact: Sequence[float], others: Sequence[float]) -> tuple[float, float, int]:
    """Compare scores of pairs by the correlation of their ranks."""
    ours, theirs = np.array(exact, np.float64), np.array(others, np.float64)
    if not np.isfinite(theirs).all():
        return 0.0, 1.0, len(ours)
    # The correlation of whole numbers from 0 on, each of them once.
    differences = ours.argsort().argsort() - theirs.argsort().argsort()
    correlation = 1 - 6 * (differences**2).sum() / (len(ours) * (len(ours) ** 2 - 1))
    return float(correlation), float(np.abs(sigmoid(ours) - sigmoid(theirs)).max()), len(ours)


def _classes(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    return [row[None] for row in softmax(outputs["logits"])]


def _labels(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:
    if task.function != "sigmoid":
        # Raw scores, where the archive gives them, are in the order of their probabilities.
        return _classes(task, outputs, items)
    yes = sigmoid(outputs["logits"])
    return [np.stack([1 - row, row], axis=1) for row in yes]


def _tokens(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    rows = zip(items, softmax(outputs["logits"]), strict=True)
    return [scores[: len(item.ids)][np.array(item.encoding.special_tokens_mask) == 0] for item, scores in rows]


def _spans(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Span]:
    if not all(np.isfinite(array).all() for array in outputs.values()):
        # Where there are no numbers, there is no answer.
        return [Span(-1, -1, math.nan)] * len(items)
    return [Span(each["start"], each["end"], each["score"]) for each in task.split(outputs, items)]


def _vectors(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:
    return [np.asarray(vector) for vector in task.split(outputs, items)]


def _maps(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    return list(outputs["classes"])


def _scores(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[float]:  # noqa: ARG001
    return [float(score) for score in outputs["logits"][:, 0]]


KINDS: Mapping[str, Kind] = {
    "image_classification": Kind("top-1", _classes, compared_rows, is_text=False),
    "image_segmentation": Kind("miou", _maps, compared_maps, is_text=False),
    "text_classification": Kind("labels", _labels, compared_rows),
    "token_classification": Kind("labels", _tokens, compared_rows),
    "question_answering": Kind("labels", _spans, compared_spans, settings={"top_k": 1}),
    "sentence_embedding": Kind("cosine", _vectors, compared_vectors),
    "reranking": Kind("ranks", _scores, compared_ranks),
}


def exact_settings(handler: str, config: Any) -> Any:
    """Give the settings under which answers are compared: those of the archive, in fp32 on OpenVINO."""
    return replace(config, engine="openvino", precision="fp32", **KINDS[handler].settings)


def is_comparable(handler: str, task: Any) -> bool:
    """Whether a loaded task's answers can be compared: a number that is no probability, a regression's, cannot."""
    return handler in KINDS and not (getattr(task, "function", None) == "none" and len(task.labels) == 1)
