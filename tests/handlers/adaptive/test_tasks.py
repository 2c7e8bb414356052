"""Every kind of task behind an adaptive worker: the answers of classic mode, whoever shares a micro-batch with whom."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from handlers.base import BatchHandler
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.tasks.text_classification import TextClassificationHandler
from handlers.tasks.token_classification import TokenClassificationHandler
from handlers.tasks.translation import TranslationHandler
from tests import tiny_models, tiny_seq2seq
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.adaptive.gated import SCHEDULING
from tests.handlers.serving import context, serve
from tests.handlers.tasks import translating

FP32 = {"precision": "fp32", "threads": 1}
# Types are named: the frontend hands over bytes, and what is JSON is told by its first character.
TEXTS: list[Any] = [{"text": text} for text in tiny_models.TEXTS]


class Case(NamedTuple):
    """A task, what its archive holds, how it is set, and what it is asked."""

    handler: type[BatchHandler[Any, Any]]
    stage: Callable[[Path], Path]
    settings: dict[str, Any]
    requests: list[Any]


def translation_archive(folder: Path) -> Path:
    (folder / "checkpoint").mkdir()
    checkpoint = tiny_seq2seq.marian(folder / "checkpoint")
    return translating.staged("tiny", checkpoint, folder, translating.SETTINGS)


CASES = {
    "text classification": Case(
        TextClassificationHandler,
        lambda folder: tiny_models.staged(folder, "bert", "text_classification", labels=("bad", "fair", "good")),
        FP32,
        [*TEXTS, {"text": "x", "top_k": 2}, {"instances": TEXTS[:3]}, {"text": ""}],
    ),
    "token classification": Case(
        TokenClassificationHandler,
        lambda folder: tiny_models.staged(folder, "bert", "token_classification"),
        FP32,
        TEXTS,
    ),
    "question answering": Case(
        QuestionAnsweringHandler,
        lambda folder: tiny_models.staged(folder, "bert", "question_answering"),
        {**FP32, "max_length": 96, "doc_stride": 32},
        [{"question": "Who wrote?", "context": text["text"] or "x"} for text in TEXTS],
    ),
    "translation": Case(
        TranslationHandler,
        translation_archive,
        translating.SETTINGS,
        [*({"text": text} for text in translating.TEXTS), {"text": "Nobody.", "num_beams": 2}],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_adaptive_task_answers_as_in_classic_mode(case: Case, tmp_path: Path) -> None:
    archive = case.stage(tmp_path)
    classic, adaptive = case.handler(), case.handler()
    classic.worker_context = context(archive, case.settings)
    classic.initialize(classic.worker_context)
    adaptive.worker_context = context(archive, {**case.settings, "scheduling": SCHEDULING}, batch_size=64)
    adaptive.worker_context.model_yaml_config["continuousBatching"] = True
    adaptive.initialize(adaptive.worker_context)
    bodies = [json.dumps(request).encode() for request in case.requests]
    expected = serve(classic, list(bodies))
    with Frontend(adaptive, window=8) as frontend:
        pending = frontend.submit_together([(body, {}) for body in bodies])
        answers = [each.result(60) for each in pending]
    for answer, wanted in zip(answers, expected, strict=True):
        assert answer.status == wanted.status
        assert _rounded(answer.body) == _rounded(wanted.body)


def _rounded(value: Any) -> Any:
    """Scores to three places: padding moves the last bits."""
    if isinstance(value, float):
        return pytest.approx(value, abs=2e-3)
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return {key: _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value
