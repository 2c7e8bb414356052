"""What all tasks on an encoder do: a text gets its own answer in any company, or its own error, and nobody else's."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from handlers.errors import InvalidConfig
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.tasks.text_classification import TextClassificationHandler
from handlers.tasks.token_classification import TokenClassificationHandler
from handlers.text.handler import TextHandler
from tests.handlers.serving import serve, started
from tests.tiny_models import LIMIT, PAGE, TEXTS

# A row, and the status, type and message of its error. What its client sent, qzqz, is nobody else's to see.
Bad = tuple[Any, int, str, str]
LONG = "the river rose " * LIMIT
FP32 = {"precision": "fp32", "threads": 1}


def of_text(text: str, **options: Any) -> dict[str, Any]:
    return {"body": {"text": text, **options}}


def of_question(question: str, context: str, **options: Any) -> dict[str, Any]:
    return {"body": {"question": question, "context": context, **options}}


BAD_TEXTS: list[Bad] = [
    (f"qzqz {LONG}", 413, "TextTooLong", r"text: \d+ tokens; max_length is 192\."),
    ("x" * 50_001, 413, "TextTooLong", "50001 characters; max_characters is 50000"),
    (" \n\t\u3000", 400, "EmptyInput", "text: empty"),
    (b"qzqz\xff", 400, "InvalidText", "not valid UTF-8 at byte 4"),
    ("a\0qzqz", 400, "InvalidText", "null character at position 1"),
    (of_text("\ud800 qzqz"), 400, "InvalidText", "lone surrogate at position 0"),
    (of_text("qzqz", size="qzqz"), 400, "UnknownOption", r"size: Unexpected.*Known options: "),
    ({"body": {"text": ["qzqz"]}}, 400, "UnknownShape", "text: must be a string"),
    ({"body": {"query": "qzqz"}}, 400, "UnknownShape", '"text"'),
]
BAD_LABELS: list[Bad] = [
    (of_text("qzqz", top_k=0), 400, "UnknownOption", "top_k.*greater than or equal to 1"),
    (of_text("qzqz", top_k="qzqz"), 400, "UnknownOption", "top_k.*integer"),
]
BAD_TAGS: list[Bad] = [(of_text("qzqz", aggregation="qzqz"), 400, "UnknownOption", "'none', 'simple', 'first', 'aver")]
BAD_QUESTIONS: list[Bad] = [
    (of_question("Who? " * LIMIT, PAGE), 413, "TextTooLong", r"question: \d+ tokens; \d+ leave room for windows"),
    (of_question("Who?", PAGE * 9), 413, "TextTooLong", r"context: \d+ tokens, \d+ windows; max_windows is 32\."),
    (of_question("Who?", "x" * 50_001), 413, "TextTooLong", "context: 50001 characters; max_characters is 50000"),
    (of_question(" ", "qzqz"), 400, "EmptyInput", "question: empty"),
    (of_question("qzqz", "\n"), 400, "EmptyInput", "context: empty"),
    (of_question("qzqz", "\u200b\u0001"), 400, "EmptyInput", "context: nothing that the tokenizer knows"),
    (of_question("qzqz", "a\0"), 400, "InvalidText", "context: has a null character at position 1"),
    ({"body": {"question": "qzqz", "context": ["qzqz"]}}, 400, "UnknownShape", "context: must be a string"),
    ({"body": {"question": "qzqz"}}, 400, "UnknownShape", "context: must be a string"),
    ("qzqz", 400, "UnknownShape", '{"question": ..., "context": ...}'),
    (of_question("qzqz", "qzqz", text="qzqz"), 400, "UnknownOption", "Known options: top_k, max_answer_tokens"),
    (of_question("qzqz", "qzqz", top_k=101), 400, "UnknownOption", "top_k: .*100"),
    (of_question("qzqz", "qzqz", max_answer_tokens=0), 400, "UnknownOption", "max_answer_tokens"),
    (of_question("qzqz", "qzqz", max_answer_tokens=129), 400, "UnknownOption", "max_answer_tokens: .*128"),
]


class Case(NamedTuple):
    """A task, its settings, rows that are answered, rows that are not, and settings that are refused."""

    handler: type[TextHandler[Any, Any]]
    settings: dict[str, Any]
    rows: list[Any]
    bad: list[Bad]
    wrong: dict[str, Any]


CASES = {
    "sentence_embedding": Case(SentenceEmbeddingHandler, {}, [*TEXTS], BAD_TEXTS, {"padding": "some"}),
    "text_classification": Case(
        TextClassificationHandler, {"top_k": None}, [*TEXTS], BAD_TEXTS + BAD_LABELS, {"function_to_apply": "relu"}
    ),
    "token_classification": Case(
        TokenClassificationHandler, {}, [*TEXTS], BAD_TEXTS + BAD_TAGS, {"aggregation": "some"}
    ),
    "question_answering": Case(
        QuestionAnsweringHandler,
        {"max_length": 96, "doc_stride": 32},
        [of_question("Who wrote the letter?", text) for text in (*TEXTS, PAGE)],
        BAD_QUESTIONS,
        {"doc_stride": 96},
    ),
}


@pytest.fixture(scope="module", params=CASES)
def archive(request: pytest.FixtureRequest, tiny_archive: Callable[..., Path]) -> tuple[Case, Path]:
    labels = {"labels": ("NEGATIVE", "NEUTRAL", "POSITIVE")} if request.param == "text_classification" else {}
    return CASES[request.param], tiny_archive("bert", request.param, **labels)


def close(value: Any) -> Any:
    """The same but for the last digits of its scores: another padding adds up in another order."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-5)
    if isinstance(value, list):
        return [close(each) for each in value]
    return {key: close(each) for key, each in value.items()} if isinstance(value, dict) else value


def test_rows_in_any_company_get_their_own_answers_and_errors(
    archive: tuple[Case, Path], caplog: pytest.LogCaptureFixture
) -> None:
    case, folder = archive
    handler = started(case.handler(), folder, {**FP32, **case.settings})
    strangers = ["qzqz the mayor", of_text("qzqz ferry qzqz")]
    if case.handler is QuestionAnsweringHandler:
        strangers = [of_question("qzqz?", f"qzqz {PAGE}")]
    alone = [serve(handler, [row])[0] for row in case.rows]
    assert {answer.status for answer in alone} == {200}
    rows = [*case.rows, *(row for row, *_ in case.bad), *strangers]
    order = list(range(len(rows)))
    for seed in range(2):
        random.Random(seed).shuffle(order)
        answers = dict(zip(order, serve(handler, [rows[i] for i in order]), strict=True))
        for place, wanted in enumerate(alone):
            assert (answers[place].status, answers[place].body) == (200, close(wanted.body))
            assert "qz" not in json.dumps(answers[place].body)
        for place, (row, status, type_, words) in enumerate(case.bad, len(case.rows)):
            answer = answers[place]
            assert (answer.status, answer.body["type"]) == (status, type_), row
            assert re.search(words, answer.body["message"]), answer.body["message"]
            assert "qz" not in json.dumps(answer.body)
    assert "qz" not in caplog.text


def test_initialize_wrong_settings_are_refused(archive: tuple[Case, Path]) -> None:
    case, folder = archive
    (name,) = case.wrong
    with pytest.raises(InvalidConfig, match=name):
        started(case.handler(), folder, {**FP32, **case.settings, **case.wrong})
    with pytest.raises(InvalidConfig, match="max_length: 193 is more than the model's own 192"):
        started(case.handler(), folder, {**FP32, **case.settings, "max_length": LIMIT + 1})
