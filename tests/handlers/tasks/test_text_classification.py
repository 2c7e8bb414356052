"""Text classification answers as transformers' pipeline does of each text alone."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from handlers.archive_files import CHECKPOINT
from handlers.tasks.text_classification import TextClassificationHandler
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import Answer, serve, started
from tests.tiny_models import LIMIT, TEXTS

# Family, and what its configuration says that decides how logits become scores.
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "bert", "labels": ("NEGATIVE", "NEUTRAL", "POSITIVE")},
    "sigmoid": {"kind": "roberta", "labels": tuple("abcdef"), "problem_type": "multi_label_classification"},
    "one-label": {"kind": "bert", "labels": ("relevance",)},
    "regression": {"kind": "distilbert", "labels": ("stars",), "problem_type": "regression"},
}
Archives = Callable[[str], Path]


@pytest.fixture(scope="module")
def archives(tiny_archive: Callable[..., Path]) -> Archives:
    return lambda name: tiny_archive(task="text_classification", **MODELS[name])


def classifier(archive: Path, **settings: Any) -> TextClassificationHandler:
    ready = started(TextClassificationHandler(), archive, {"precision": "fp32", "threads": 1, **settings})
    assert isinstance(ready, TextClassificationHandler)
    return ready


@pytest.fixture(scope="module")
def handler(archives: Archives) -> TextClassificationHandler:
    return classifier(archives("softmax"))


@cache
def pipeline(archive: Path) -> Any:
    return transformers.pipeline("text-classification", model=str(archive / CHECKPOINT), dtype="float32", device="cpu")


def oracle(archive: Path, **options: Any) -> list[list[dict[str, Any]]]:
    """What transformers' pipeline says of TEXTS, one at a time."""
    return [pipeline(archive)(text, **options) for text in TEXTS]


def assert_same(answer: Answer, expected: list[dict[str, Any]], tolerance: float = 1e-4) -> None:
    assert answer.status == 200, answer.body
    assert [entry["label"] for entry in answer.body] == [entry["label"] for entry in expected]
    for got, wanted in zip(answer.body, expected, strict=True):
        assert set(got) == {"label", "score"}
        assert got["score"] == pytest.approx(wanted["score"], abs=tolerance)


@pytest.mark.parametrize(
    ("name", "settings", "options"),
    [
        *((name, {"top_k": None}, {"top_k": None}) for name in MODELS),
        ("softmax", {"top_k": None, "engine": "torch"}, {"top_k": None}),
        # The configuration's comes before the model's own.
        ("one-label", {"function_to_apply": "none"}, {"function_to_apply": "none", "top_k": 1}),
    ],
)
def test_answers_a_mixed_batch_equals_the_pipeline_text_by_text(
    archives: Archives, name: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    ready = classifier(archives(name), **settings)
    for answer, expected in zip(serve(ready, list(TEXTS)), oracle(archives(name), **options), strict=True):
        assert_same(answer, expected)


@pytest.mark.parametrize(("top_k", "count"), [(None, 3), (1, 1), (2, 2), (99, 3)])
def test_answers_top_k_gives_that_many_labels_beside_others_of_one_forward_pass(
    handler: TextClassificationHandler, top_k: int | None, count: int
) -> None:
    plain, asked = serve(handler, [TEXTS[0], {"body": {"text": TEXTS[0], "top_k": top_k}}])
    assert (len(plain.body), len(asked.body)) == (1, count)
    assert asked.body[0] == plain.body[0]
    assert 'batch;desc="2"' in asked.headers["Server-Timing"]


def test_answers_tensors_are_columns_of_labels_and_scores(handler: TextClassificationHandler) -> None:
    texts = list(TEXTS[:3])
    (answer,) = serve(handler, [inquiry(INPUT0=texts, top_k=[3, 3, 3])])
    columned = columns(answer)
    for text, labels, scores in zip(texts, columned["label"], columned["score"], strict=True):
        (alone,) = serve(handler, [{"body": {"text": text, "top_k": 3}}])
        assert labels == [entry["label"] for entry in alone.body]
        assert scores == pytest.approx([entry["score"] for entry in alone.body], abs=1e-4)


def test_answers_truncation_cuts_a_long_text_as_the_pipeline_does(archives: Archives) -> None:
    texts = ["the river rose " * LIMIT, TEXTS[0]]
    ready = classifier(archives("softmax"), truncation=True, top_k=None)
    for answer, text in zip(serve(ready, texts), texts, strict=True):
        assert_same(answer, pipeline(archives("softmax"))(text, top_k=None, truncation=True))
