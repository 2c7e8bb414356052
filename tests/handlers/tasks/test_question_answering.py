"""Question answering gives transformers' answers and scores, in contexts of one window and of many."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.tasks.question_answering import QuestionAnsweringHandler
from tests.handlers.serving import serve, started
from tests.handlers.tasks.answers_oracle import STRIDE, WINDOW, Oracle, assert_best
from tests.oracle import assert_order, is_apart
from tests.tiny_models import LIMIT, PAGE, TEXTS

KINDS = ("bert", "distilbert", "roberta")
QUESTIONS = ("Who wrote the letter?", "부산으로 가는 기차는 몇 시에 떠납니까?", "Où? 🌉", "מי כתבה מכתב?")
# Contexts of one token, of one window and of many.
CONTEXTS = (*TEXTS, PAGE, PAGE.replace("\n", " ")[200:900])
PAIRS = [(QUESTIONS[index % len(QUESTIONS)], context) for index, context in enumerate(CONTEXTS)]


@pytest.fixture(scope="module")
def bert(tiny_archive: Callable[..., Path]) -> Path:
    return tiny_archive("bert", "question_answering", engine="torch")


def answerer(archive: Path, **settings: Any) -> QuestionAnsweringHandler:
    given = {"precision": "fp32", "threads": 1, "engine": "torch", "max_length": WINDOW, "doc_stride": STRIDE}
    ready = started(QuestionAnsweringHandler(), archive, {**given, **settings})
    assert isinstance(ready, QuestionAnsweringHandler)
    return ready


@pytest.fixture(scope="module")
def handler(bert: Path) -> QuestionAnsweringHandler:
    return answerer(bert)


@pytest.fixture(scope="module")
def oracle(bert: Path) -> Oracle:
    return Oracle(bert)


def asked(question: str, context: str, **options: Any) -> dict[str, Any]:
    return {"body": {"question": question, "context": context, **options}}


@pytest.mark.parametrize(
    ("kind", "settings", "tolerance", "least"),
    [
        *(pytest.param(kind, {"engine": "openvino"}, 1e-4, 40, marks=pytest.mark.builds) for kind in KINDS),
        ("bert", {"engine": "torch"}, 1e-4, 40),
        # bf16 rounds each factor by 2**-9, and heads are scaled up by eight: few answers are that far apart.
        ("bert", {"engine": "torch", "precision": "bf16"}, 0.1, 4),
        pytest.param(
            "bert",
            {"engine": "openvino", "precision": "bf16"},
            0.1,
            4,
            marks=[pytest.mark.bf16, pytest.mark.builds],
        ),
    ],
)
def test_answers_a_mixed_batch_equals_fp32_torch_question_by_question(
    tiny_archive: Callable[..., Path], kind: str, settings: dict[str, Any], tolerance: float, least: int
) -> None:
    archive = tiny_archive(kind, "question_answering", engine=settings["engine"])
    oracle = Oracle(archive)
    asks = [(*pair, top_k, is_aligned) for pair in PAIRS for top_k in (1, 3) for is_aligned in (True, False)]
    rows = [asked(one, context, top_k=most, align_to_words=aligned) for one, context, most, aligned in asks]
    compared = 0
    for (question, context, top_k, is_aligned), answer in zip(
        asks, serve(answerer(archive, **settings), rows), strict=True
    ):
        assert answer.status == 200, answer.body
        wanted, more = (oracle.answers(question, context, most, is_aligned=is_aligned) for most in (top_k, top_k + 1))
        if is_apart([each["score"] for each in wanted], tolerance) and is_apart(
            [each["score"] for each in more], tolerance
        ):
            assert_best(answer.body, wanted, tolerance)
            compared += 1
    assert compared >= least


# Rows with the status, type and message of their errors. No other client may see the text that they contain, qzqz.
BAD: list[tuple[Any, int, str, str]] = [
    (asked("Who? " * LIMIT, PAGE), 413, "TextTooLong", r"question: \d+ tokens; at most \d+ beside a context"),
    (asked("Who?", PAGE * 9), 413, "TextTooLong", r"context: \d+ tokens, \d+ windows; max_windows is 32\."),
    (asked(" ", "qzqz"), 400, "EmptyInput", "question: empty"),
    (asked("qzqz", "\u200b\u0001"), 400, "EmptyInput", "context: contains no token of the model"),
    ({"body": {"question": "qzqz"}}, 400, "InvalidBody", "context: must be a string"),
    ("qzqz", 400, "InvalidBody", '{"question": ..., "context": ...}'),
    (asked("qzqz", "qzqz", text="qzqz"), 400, "InvalidOption", "Known options: top_k, max_answer_tokens"),
    (asked("qzqz", "qzqz", top_k=101), 400, "InvalidOption", "top_k: .*100"),
]


def test_questions_in_any_company_get_their_own_answers_and_errors(
    handler: QuestionAnsweringHandler, caplog: pytest.LogCaptureFixture
) -> None:
    alone = [serve(handler, [asked(*pair)])[0] for pair in PAIRS]
    for pair in PAIRS:
        (two,) = serve(handler, [asked(*pair, top_k=2)])
        assert_order([each["score"] for each in two.body], 1e-5)
    rows = [*(asked(*pair) for pair in PAIRS), *(row for row, *_ in BAD), asked("qzqz?", f"qzqz {PAGE}", top_k=9)]
    order = list(range(len(rows)))
    for seed in range(2):
        random.Random(seed).shuffle(order)
        answers = dict(zip(order, serve(handler, [rows[place] for place in order]), strict=True))
        for place, wanted in enumerate(alone):
            got = answers[place]
            assert (got.status, got.body) == (
                200,
                {**wanted.body, "score": pytest.approx(wanted.body["score"], abs=1e-5)},
            )
        for place, (row, status, type_, words) in enumerate(BAD, len(PAIRS)):
            assert (answers[place].status, answers[place].body["type"]) == (status, type_), row
            assert re.search(words, answers[place].body["message"])
        assert "qz" not in json.dumps([answers[place].body for place in range(len(PAIRS) + len(BAD))])
    assert "qz" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_request_characters": 3 * len(PAGE)}, f"max_request_characters, {3 * len(PAGE)}"),
        # Every window of each context counts.
        ({"max_request_tokens": 800}, "max_request_tokens is 800"),
    ],
)
def test_answers_many_questions_over_one_long_context_are_too_much_work(
    bert: Path, settings: dict[str, int], words: str
) -> None:
    shared = [{"instances": [{"question": "Who?"}] * count, "context": PAGE} for count in (1, 3)]
    few, many = serve(answerer(bert, **settings), [{"body": document} for document in shared])
    assert (few.status, many.status) == (200, 413)
    errors = [prediction["error"] for prediction in many.body["predictions"]]
    assert {error["type"] for error in errors} == {"WorkTooLarge"}
    assert words in errors[-1]["message"]


def test_answers_longer_than_an_answer_may_be_are_413_for_their_question_alone(
    handler: QuestionAnsweringHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handlers.tasks.question_answering.MOST_CHARACTERS", 60)
    one, many = serve(handler, [asked(*PAIRS[0], max_answer_tokens=1), asked(*PAIRS[0], top_k=100)])
    assert (one.status, many.status, many.body["type"]) == (200, 413, "ResponseTooLarge")
