"""Answers in one precision, as they can be compared with those in another.

items -> micro-batches -> the task's collate and forward, on an engine -> its outputs -> an answer for each item
answers in fp32, answers in another precision -> comparisons.py -> handlers.proofs.Proof
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from deploy.build.precision.comparisons import (
    Array,
    Boxes,
    Comparison,
    Span,
    compared_accuracy,
    compared_boxes,
    compared_maps,
    compared_ranks,
    compared_rows,
    compared_spans,
    compared_vectors,
)
from handlers.engines import Engine
from handlers.pipeline.micro_batches import plan_micro_batches
from handlers.probabilities import sigmoid, softmax
from handlers.proofs import Measure, Proof

# Items of a micro-batch: enough for speed, and in fp32 little memory.
BATCH = 16
# The least score of a box; and a side of an image in pixels, large since boxes are whole pixels.
FOUND, SIDE = 0.25, 10_000


class Kind(NamedTuple):
    """How the answers of a task are compared.

    Attributes:
        measure: as a proof names it.
        least: the least agreement, unless another is asked for.
        read: takes the loaded task, its outputs and its items; gives an answer for each item, such as `compare` takes.
        compare: takes the answers in fp32 and the others.
        settings: those that answers are made under, whatever the archive's are.
    """

    measure: Measure
    least: float
    read: Callable[[Any, Mapping[str, Any], Sequence[Any]], Sequence[Any]]
    compare: Callable[[Sequence[Any], Sequence[Any]], Comparison]
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
    for indices in plan_micro_batches([task.cost(item) for item in items], BATCH, task.config.max_batch_tokens):
        some = [items[index] for index in indices]
        outputs = task.forward(task.collate(some), some)
        found |= dict(zip(indices, kind.read(task, outputs, some), strict=True))
    return [found[index] for index in range(len(items))]


def proof(
    handler: str,
    exact: Sequence[Any],
    answers: Sequence[Any],
    least: float | None = None,
    truths: Sequence[int] | None = None,
) -> Proof:
    """Hold answers against those in fp32.

    Args:
        handler: the task's name.
        exact, answers: of the same items, at least one; the first in fp32.
        least: the agreement that is asked for; None for the task's own.
        truths: the number of the right class of each item, where they are known.
    """
    kind = KINDS[handler]
    compared = kind.compare(exact, answers) if truths is None else compared_accuracy(exact, answers, truths)
    measure: Measure = kind.measure if truths is None else "accuracy"
    agreement, change = round(compared.agreement, 6), round(compared.largest_change, 6)
    broken = sum(not (_is_finite(one) and _is_finite(other)) for one, other in zip(exact, answers, strict=True))
    least = kind.least if least is None else least
    return Proof(measure, agreement, change, compared.samples, least, compared.detail, broken)


def _is_finite(answer: Any) -> bool:
    parts = map(np.asarray, answer if isinstance(answer, Span | Boxes) else [answer])
    return all(np.isfinite(part).all() for part in parts if part.dtype.kind == "f")


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
        return [Span(-1, -1, math.nan, 0.0)] * len(items)
    return [_span(each if isinstance(each, list) else [each]) for each in task.split(outputs, items)]


def _span(answers: Sequence[Mapping[str, Any]]) -> Span:
    first, *others = answers
    lead = first["score"] - (others[0]["score"] if others else 0.0)
    return Span(first["start"], first["end"], first["score"], lead)


def _vectors(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:
    return [np.asarray(vector) for vector in task.split(outputs, items)]


def _boxes(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Boxes]:
    answers = task.split(outputs, [replace(item, size=(SIDE, SIDE)) for item in items])
    return [
        Boxes(
            np.array([each["label"] for each in found], object),
            np.array([each["score"] for each in found]),
            np.array([[*each["box"].values()] for each in found], np.float64).reshape(-1, 4),
        )
        for found in answers
    ]


def _maps(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    return list(outputs["classes"] if "classes" in outputs else outputs["map_logits"].argmax(1))


def _scores(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[float]:  # noqa: ARG001
    return [float(score) for score in outputs["logits"][:, 0]]


KINDS: Mapping[str, Kind] = {
    "image_classification": Kind("top-1", 0.99, _classes, compared_rows),
    "object_detection": Kind("map", 0.98, _boxes, compared_boxes, {"threshold": FOUND, "answer": "boxes"}),
    "image_segmentation": Kind("miou", 0.98, _maps, compared_maps),
    "image_text_embedding": Kind("vectors", 0.98, _vectors, compared_vectors),
    "text_classification": Kind("labels", 0.99, _labels, compared_rows),
    "token_classification": Kind("labels", 0.99, _tokens, compared_rows),
    "question_answering": Kind("labels", 0.99, _spans, compared_spans, {"top_k": 2}),
    "sentence_embedding": Kind("vectors", 0.98, _vectors, compared_vectors),
    "reranking": Kind("ranks", 0.98, _scores, compared_ranks),
}


def exact_settings(handler: str, config: Any) -> Any:
    """Give the settings under which answers are compared: those of the archive, in fp32 on OpenVINO."""
    return replace(config, engine="openvino", precision="fp32", **KINDS[handler].settings)


def is_comparable(handler: str, task: Any) -> bool:
    """Whether a loaded task's answers can be compared: a number that is no probability, a regression's, cannot."""
    return handler in KINDS and not (getattr(task, "function", None) == "none" and len(task.labels) == 1)
