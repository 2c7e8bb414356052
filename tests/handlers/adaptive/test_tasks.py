"""Tasks behind an adaptive worker: the answers of classic mode, whoever shares a micro-batch with whom."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.base import BatchHandler
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.tasks.text_classification import TextClassificationHandler
from handlers.tasks.translation import TranslationHandler
from tests import tiny_models, tiny_seq2seq
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.adaptive.gated import SCHEDULING
from tests.handlers.serving import context, serve
from tests.handlers.tasks import translating

FP32 = {"precision": "fp32", "threads": 1}
# Types are named: the frontend hands over bytes, and what is JSON is told by its first character.
TEXTS: list[Any] = [{"text": text} for text in tiny_models.TEXTS]


def classification_archive(folder: Path) -> Path:
    return tiny_models.staged(folder, "bert", "text_classification", labels=("bad", "fair", "good"))


def translation_archive(folder: Path) -> Path:
    (folder / "checkpoint").mkdir()
    checkpoint = tiny_seq2seq.marian(folder / "checkpoint")
    return translating.staged("tiny", checkpoint, folder, translating.SETTINGS)


@pytest.mark.parametrize(
    ("kind", "stage", "settings", "requests"),
    [
        (
            TextClassificationHandler,
            classification_archive,
            FP32,
            [*TEXTS, {"text": "x", "top_k": 2}, {"instances": TEXTS[:3]}, {"text": ""}],
        ),
        (
            QuestionAnsweringHandler,
            lambda folder: tiny_models.staged(folder, "bert", "question_answering"),
            # Long contexts are several windows.
            {**FP32, "max_length": 96, "doc_stride": 32},
            [{"question": "Who wrote?", "context": text["text"] or "x"} for text in TEXTS],
        ),
        (
            TranslationHandler,
            translation_archive,
            translating.SETTINGS,
            [*({"text": text} for text in translating.TEXTS), {"text": "Nobody.", "num_beams": 2}],
        ),
    ],
    ids=["text classification", "question answering", "translation"],
)
def test_adaptive_task_answers_as_in_classic_mode(
    kind: type[BatchHandler[Any, Any]],
    stage: Callable[[Path], Path],
    settings: dict[str, Any],
    requests: list[Any],
    tmp_path: Path,
) -> None:
    archive = stage(tmp_path)
    classic, adaptive = kind(), kind()
    classic.worker_context = context(archive, settings)
    classic.initialize(classic.worker_context)
    adaptive.worker_context = context(archive, {**settings, "scheduling": SCHEDULING}, batch_size=64)
    adaptive.worker_context.model_yaml_config["continuousBatching"] = True
    adaptive.initialize(adaptive.worker_context)
    bodies = [json.dumps(request).encode() for request in requests]
    expected = serve(classic, list(bodies))
    with Frontend(adaptive, window=8) as frontend:
        pending = frontend.submit_together([(body, {}) for body in bodies])
        answers = [each.result(60) for each in pending]
    for answer, wanted in zip(answers, expected, strict=True):
        assert answer.status == wanted.status
        assert near(answer.body) == near(wanted.body)


def near(value: Any) -> Any:
    """Compare scores to three places: padding moves the last bits."""
    if isinstance(value, float):
        return pytest.approx(value, abs=2e-3)
    if isinstance(value, list):
        return [near(each) for each in value]
    return {key: near(each) for key, each in value.items()} if isinstance(value, dict) else value
