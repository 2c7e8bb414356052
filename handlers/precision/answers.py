"""Answers in one precision, in a form that can be compared with those in another.

items -> micro-batches -> the task's collate and forward, on an engine -> its outputs -> an answer for each item
answers in fp32, answers in another precision -> comparisons.py -> handlers.proofs.Proof
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from handlers.engines import Engine
from handlers.pipeline.micro_batches import plan_micro_batches
from handlers.precision import comparisons
from handlers.precision.comparisons import Array, Boxes, Comparison, Span
from handlers.probabilities import sigmoid, softmax
from handlers.proofs import Measure, Proof

BATCH = 16  # items of a micro-batch: enough for speed, and in fp32 little memory
FOUND = 0.25  # the least score of a box
SIDE = 10_000  # the side of an image in pixels, large since boxes are whole pixels
REGRESSION = "regression"  # the kind of a classifier whose answers are numbers


class Kind(NamedTuple):
    measure: Measure
    least: float  # the default of the least agreement
    # The loaded task, its outputs and its items -> an answer for each item.
    read: Callable[[Any, Mapping[str, Any], Sequence[Any]], Sequence[Any]]
    compare: Callable[[Sequence[Any], Sequence[Any]], Comparison]  # the answers in fp32, and the others
    settings: Mapping[str, Any] = {}  # settings that replace the archive's
    form: Callable[..., Any] = lambda part: part  # the arrays of an answer -> the answer


def answer_items(
    task: Any, items: Sequence[Any], engine: Engine, longest_s: float = math.inf, kind_name: str | None = None
) -> list[Any]:
    """Answer items in order on an engine: the first, in which it prepares itself, and what ends within `longest_s`."""
    kind = KINDS[kind_name or name_kind(task)]
    task.engine = engine
    begun_s = time.perf_counter()
    answers = run_items(task, items[:1], kind.read, BATCH, task.config.max_batch_tokens)
    started_s, item_s, size = time.perf_counter(), 0.0, 1
    if started_s - begun_s > longest_s:
        return answers
    while len(answers) < len(items):
        begun_s = time.perf_counter()
        left_s = longest_s - (begun_s - started_s)
        if size * item_s > left_s:
            size = max(0, int(left_s / item_s))
        if not (some := items[len(answers) : len(answers) + size]):
            break
        answers += run_items(task, some, kind.read, BATCH, task.config.max_batch_tokens)
        item_s, size = max(item_s, (time.perf_counter() - begun_s) / len(some)), min(2 * size, BATCH)
    return answers


def run_items(
    task: Any,
    items: Sequence[Any],
    read: Callable[[Any, Mapping[str, Any], Sequence[Any]], Sequence[Any]],
    max_items: int,
    max_tokens: int | None = None,
) -> list[Any]:
    """Run items in micro-batches, and return one answer for each, in order."""
    answers: dict[int, Any] = {}
    for indices in plan_micro_batches([task.cost(item) for item in items], max_items, max_tokens):
        some = [items[index] for index in indices]
        outputs = task.forward(task.collate(some), some)
        answers |= dict(zip(indices, read(task, outputs, some), strict=True))
    return [answers[index] for index in range(len(items))]


def name_kind(task: Any) -> str:
    """Return the key of KINDS for a loaded task."""
    handler = type(task).__module__.rpartition(".")[2]
    # A text's client can ask for raw scores; an image classifier has them only as a regression.
    problem = getattr(getattr(task, "model_config", None), "problem_type", REGRESSION)
    if getattr(task, "function", None) == "none" and (problem == REGRESSION or len(task.labels) == 1):
        return REGRESSION
    return str(handler)


def make_proof(
    kind_name: str,
    exact: Sequence[Any],
    answers: Sequence[Any],
    least: float | None = None,
    truths: Sequence[int] | None = None,
) -> Proof:
    """Compare answers with those of the same items in fp32."""
    kind = KINDS[kind_name]
    compared = kind.compare(exact, answers) if truths is None else comparisons.compare_accuracy(exact, answers, truths)
    measure: Measure = kind.measure if truths is None else "accuracy"
    # NaN, such as the correlation of one pair, is no agreement; nor is it JSON.
    agreement = round(float(np.nan_to_num(compared.agreement)), 6)
    change = round(float(np.nan_to_num(compared.largest_change, nan=1.0)), 6)
    broken = sum(not (_is_finite(one) and _is_finite(other)) for one, other in zip(exact, answers, strict=True))
    least = kind.least if least is None else least
    return Proof(measure, agreement, change, compared.samples, least, compared.detail, broken)


def _is_finite(answer: Any) -> bool:
    parts = map(np.asarray, answer if isinstance(answer, Span | Boxes) else [answer])
    return all(np.isfinite(part).all() for part in parts if part.dtype.kind == "f")


def _read_labels(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    if task.function != "sigmoid":
        # Raw scores, which an archive may return, have the order of their probabilities.
        return [row[None] for row in softmax(outputs["logits"])]
    return [np.stack([1 - row, row], axis=1) for row in sigmoid(outputs["logits"])]


def _read_tokens(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    rows = iter(softmax(outputs["logits"]))
    return [
        np.concatenate([next(rows)[window.first : window.first + window.tokens] for window in item.windows])
        for item in items
    ]


def _read_spans(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Span]:
    if not all(np.isfinite(array).all() for array in outputs.values()):
        return [Span(-1, -1, math.nan, 0.0)] * len(items)  # without numbers there is no answer
    return [_read_span(each if isinstance(each, list) else [each]) for each in task.split(outputs, items)]


def _read_span(answers: Sequence[Mapping[str, Any]]) -> Span:
    first, *others = answers
    lead = first["score"] - (others[0]["score"] if others else 0.0)
    return Span(first["start"], first["end"], first["score"], lead)


def _read_vectors(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:
    return [np.asarray(vector) for vector in task.split(outputs, items)]


def _read_boxes(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Boxes]:
    answers = task.split(outputs, [replace(item, size=(SIDE, SIDE)) for item in items])
    return [
        Boxes(
            np.array([each["label"] for each in found], object),
            np.array([each["score"] for each in found]),
            np.array([[*each["box"].values()] for each in found], np.float64).reshape(-1, 4),
        )
        for found in answers
    ]


def _read_maps(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    return list(outputs["classes"] if "classes" in outputs else outputs["map_logits"].argmax(1))


def _read_values(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    return list(outputs["logits"])


def _read_scores(task: Any, outputs: Mapping[str, Any], items: Sequence[Any]) -> list[float]:  # noqa: ARG001
    return [float(score) for score in outputs["logits"][:, 0]]


KINDS: Mapping[str, Kind] = {
    "image_classification": Kind("top-1", 0.99, _read_labels, comparisons.compare_rows),
    "object_detection": Kind(
        "map", 0.98, _read_boxes, comparisons.compare_boxes, {"threshold": FOUND, "answer": "boxes"}, Boxes
    ),
    "image_segmentation": Kind("miou", 0.98, _read_maps, comparisons.compare_maps),
    "image_text_embedding": Kind("vectors", 0.98, _read_vectors, comparisons.compare_vectors),
    "text_classification": Kind("labels", 0.99, _read_labels, comparisons.compare_rows),
    "token_classification": Kind("labels", 0.99, _read_tokens, comparisons.compare_rows),
    "question_answering": Kind("labels", 0.99, _read_spans, comparisons.compare_spans, {"top_k": 2}, Span),
    "sentence_embedding": Kind("vectors", 0.98, _read_vectors, comparisons.compare_vectors),
    "reranking": Kind("ranks", 0.98, _read_scores, comparisons.compare_ranks),
    REGRESSION: Kind("values", 0.98, _read_values, comparisons.compare_values),
}


def exact_settings(handler: str, config: Any) -> Any:
    """Return the settings for comparisons: the archive's, in fp32 on OpenVINO."""
    return replace(config, engine="openvino", precision="fp32", **KINDS[handler].settings)
