"""Answers in one precision, in a form that can be compared with those in another.

items -> micro-batches -> the task's collate and forward, on an engine -> its outputs -> an answer for each item
answers in fp32, answers in another precision -> comparisons.py -> handlers.proofs.Proof
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from handlers.engines import Arrays, Engine
from handlers.pipeline.micro_batches import plan_micro_batches
from handlers.precision import comparisons
from handlers.precision.comparisons import Boxes, Comparison, Floats, Span
from handlers.probabilities import sigmoid, softmax
from handlers.proofs import Measure, Proof

BATCH = 16  # items of a micro-batch: enough for speed, and in fp32 little memory
REGRESSION = "regression"


# The loaded task, its outputs and its items -> an answer for each item.
Read = Callable[[Any, Arrays, Sequence[Any]], Sequence[Any]]


class Kind(NamedTuple):
    """How the answers of a task in two precisions are compared; a task's class states its own as `answer_kind`."""

    measure: Measure
    least: float  # the default of the least agreement
    read: Read
    compare: Callable[[Sequence[Any], Sequence[Any]], Comparison]  # the answers in fp32, and the others
    settings: Mapping[str, object] = {}  # settings that replace the archive's
    form: Callable[..., object] = lambda part: part  # the arrays of an answer -> the answer
    has_classes: bool = False  # whether one class is right for an item, so that labels can tell the accuracy


def answer_items(
    task: Any, items: Sequence[object], engine: Engine, longest_s: float = math.inf, kind: Kind | None = None
) -> list[Any]:
    """Answer items in order on an engine: the first, in which it prepares itself, and what ends within `longest_s`."""
    kind = kind or kind_of(task)
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
    items: Sequence[object],
    read: Read,
    max_items: int,
    max_tokens: int | None = None,
) -> list[Any]:
    """Run items in micro-batches, and return one answer for each, in order."""
    answers: dict[int, object] = {}
    for indices in plan_micro_batches([task.cost(item) for item in items], max_items, max_tokens):
        some = [items[index] for index in indices]
        outputs = task.forward(task.collate(some), some)
        answers |= dict(zip(indices, read(task, outputs, some), strict=True))
    return [answers[index] for index in range(len(items))]


def kind_of(task: Any) -> Kind:
    """Return the kind of a loaded task."""
    # A text's client can ask for raw scores; an image classifier has them only as a regression.
    problem = getattr(getattr(task, "model_config", None), "problem_type", REGRESSION)
    if getattr(task, "function", None) == "none" and (problem == REGRESSION or len(task.labels) == 1):
        return NUMBERS
    kind: Any = getattr(task, "answer_kind", None)  # a task without one has no samples
    return cast(Kind, kind)


def make_proof(
    kind: Kind,
    exact: Sequence[Any],
    answers: Sequence[Any],
    least: float | None = None,
    truths: Sequence[int] | None = None,
) -> Proof:
    """Compare answers with those of the same items in fp32."""
    compared = kind.compare(exact, answers) if truths is None else comparisons.compare_accuracy(exact, answers, truths)
    measure: Measure = kind.measure if truths is None else "accuracy"
    # NaN, such as the correlation of one pair, is no agreement; nor is it JSON.
    agreement = round(float(np.nan_to_num(compared.agreement)), 6)
    change = round(float(np.nan_to_num(compared.largest_change, nan=1.0)), 6)
    broken = sum(not (_is_finite(one) and _is_finite(other)) for one, other in zip(exact, answers, strict=True))
    least = kind.least if least is None else least
    return Proof(measure, agreement, change, compared.samples, least, compared.detail, broken)


def _is_finite(answer: object) -> bool:
    parts = map(np.asarray, answer if isinstance(answer, Span | Boxes) else [answer])
    return all(np.isfinite(part).all() for part in parts if part.dtype.kind == "f")


def read_labels(task: Any, outputs: Arrays, items: Sequence[object]) -> list[Floats]:  # noqa: ARG001
    if task.function != "sigmoid":
        # Raw scores, which an archive may return, have the order of their probabilities.
        return [row[None] for row in softmax(outputs["logits"])]
    return [np.stack([1 - row, row], axis=1) for row in sigmoid(outputs["logits"])]


def read_vectors(task: Any, outputs: Arrays, items: Sequence[object]) -> list[Floats]:
    return [np.asarray(vector) for vector in task.split(outputs, items)]


def read_numbers(task: object, outputs: Arrays, items: Sequence[object]) -> list[Floats]:  # noqa: ARG001
    return list(outputs["logits"])


# The kinds of several tasks: the labels of a classifier, vectors, and the numbers of a regression.
LABELS = Kind("labels", 0.99, read_labels, comparisons.compare_rows, has_classes=True)
VECTORS = Kind("vectors", 0.98, read_vectors, comparisons.compare_vectors)
NUMBERS = Kind("values", 0.98, read_numbers, comparisons.compare_values)


def exact_settings(kind: Kind, config: Any) -> Any:
    """Return the settings for comparisons: the archive's, in fp32 on OpenVINO."""
    return replace(config, engine="openvino", precision="fp32", **kind.settings)
