import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.errors import InvalidConfig
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.requests import Payload
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.text.answer_spans import TUNING
from tests.handlers.engines.test_engines import HAS_BF16
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import Answer, serve, started
from tests.handlers.tasks.answers_oracle import STRIDE, WINDOW, Oracle, assert_best
from tests.tiny_models import LIMIT, PAGE, TEXTS, staged

KINDS = ("bert", "distilbert", "roberta")
QUESTIONS = ("Who wrote the letter?", "부산으로 가는 기차는 몇 시에 떠납니까?", "Où? 🌉", "מי כתבה מכתב?")
# Contexts of one token, of one window and of many.
CONTEXTS = (*TEXTS, PAGE, PAGE.replace("\n", " ")[200:900])
PAIRS = [(QUESTIONS[index % len(QUESTIONS)], context) for index, context in enumerate(CONTEXTS)]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: staged(tmp_path_factory.mktemp(kind), kind, "question_answering") for kind in KINDS}


def answerer(archive: Path, **settings: Any) -> QuestionAnsweringHandler:
    windows = {"max_length": WINDOW, "doc_stride": STRIDE}
    ready = started(QuestionAnsweringHandler(), archive, {"precision": "fp32", "threads": 1, **windows, **settings})
    assert isinstance(ready, QuestionAnsweringHandler)
    return ready


@pytest.fixture(scope="module")
def handler(archives: dict[str, Path]) -> QuestionAnsweringHandler:
    return answerer(archives["bert"])


def asked(question: str, context: str, **options: Any) -> dict[str, Any]:
    return {"body": {"question": question, "context": context, **options}}


@pytest.fixture(scope="module")
def oracles(archives: dict[str, Path]) -> dict[str, Oracle]:
    return {kind: Oracle(archive) for kind, archive in archives.items()}


@pytest.mark.parametrize("engine", ["openvino", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_a_mixed_batch_equals_fp32_torch_question_by_question(
    archives: dict[str, Path], oracles: dict[str, Oracle], kind: str, engine: str
) -> None:
    answers = serve(answerer(archives[kind], engine=engine), [asked(*pair) for pair in PAIRS])
    for pair, answer in zip(PAIRS, answers, strict=True):
        assert answer.status == 200, answer.body
        assert_best(answer.body, pair[1], oracles[kind].answers(*pair), tolerance=1e-4)


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bf16")
@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_answers_in_bf16_are_within_a_tenth_of_the_best(
    archives: dict[str, Path], oracles: dict[str, Oracle], engine: str
) -> None:
    answers = serve(answerer(archives["bert"], engine=engine, precision="bf16"), [asked(*pair) for pair in PAIRS])
    for pair, answer in zip(PAIRS, answers, strict=True):
        assert_best(answer.body, pair[1], oracles["bert"].answers(*pair), tolerance=0.1)


def test_answers_top_k_are_the_oracles_best_places_in_their_order(
    handler: QuestionAnsweringHandler, oracles: dict[str, Oracle]
) -> None:
    answers = serve(handler, [asked(*pair, top_k=4, max_answer_tokens=3) for pair in PAIRS])
    for pair, answer in zip(PAIRS, answers, strict=True):
        expected = oracles["bert"].answers(*pair, max_tokens=3)
        best = sorted(expected.values(), reverse=True)[:4]
        assert [entry["score"] for entry in answer.body] == pytest.approx(best, abs=1e-4)
        for entry in answer.body:
            assert entry["score"] == pytest.approx(expected[entry["start"], entry["end"]], abs=1e-4)


def test_answers_tensors_are_columns_of_what_each_question_gets(handler: QuestionAnsweringHandler) -> None:
    questions, contexts = [QUESTIONS[0], QUESTIONS[1], " "], [TEXTS[0], PAGE, TEXTS[0]]
    one, two, empty, answer = serve(
        handler,
        [
            asked(questions[0], contexts[0]),
            asked(questions[1], contexts[1], top_k=2),
            asked(questions[2], contexts[2]),
            inquiry(question=questions, context=contexts, top_k=[1, 2, 1]),
        ],
    )
    columned = columns(answer)
    padding: dict[str, Any] = {"answer": "", "start": -1, "end": -1}
    for name, nothing in padding.items():
        assert columned[name] == [[one.body[name], nothing], [entry[name] for entry in two.body], [nothing, nothing]]
    assert columned["score"][1] == pytest.approx([entry["score"] for entry in two.body], abs=1e-4)
    assert [error and json.loads(error) for error in columned["error"]] == ["", "", empty.body]


def test_answers_options_of_one_question_leave_the_others_and_the_forward_pass_alone(
    handler: QuestionAnsweringHandler,
) -> None:
    question, context = QUESTIONS[0], TEXTS[0]
    options: list[dict[str, Any]] = [{}, {"top_k": 3}, {"max_answer_tokens": 1}, {"align_to_words": False}]
    answers = serve(handler, [asked(question, context, **option) for option in options])
    assert answers[1].body[0] == answers[0].body
    assert len(answers[1].body) == 3
    assert " " not in answers[2].body["answer"]
    assert all(f'batch;desc="{len(options)}"' in answer.headers["Server-Timing"] for answer in answers)


def test_answers_align_to_words_widens_a_part_of_a_word(handler: QuestionAnsweringHandler) -> None:
    context = "Gegenüberstellungen widerspruchsfreier Beobachtungen " * 3
    widened, exact = serve(
        handler,
        [
            asked(QUESTIONS[0], context, top_k=50, align_to_words=choice, max_answer_tokens=1)
            for choice in (True, False)
        ],
    )
    assert {entry["answer"] for entry in widened.body} <= set(context.split())
    assert not {entry["answer"] for entry in exact.body} <= set(context.split())


def test_answers_never_end_before_they_start(handler: QuestionAnsweringHandler) -> None:
    answers = serve(handler, [asked(*pair, top_k=100, align_to_words=False) for pair in PAIRS])
    for (_, context), answer in zip(PAIRS, answers, strict=True):
        for entry in answer.body:
            assert 0 <= entry["start"] <= entry["end"] <= len(context)


def test_answers_in_a_late_window_have_places_of_the_whole_context(handler: QuestionAnsweringHandler) -> None:
    """The best answer of a text keeps its words and moves with them when another text stands before it."""
    (answer,) = serve(handler, [asked(QUESTIONS[0], PAGE, top_k=100)])
    assert max(entry["start"] for entry in answer.body) > 600
    assert all(entry["answer"] == PAGE[entry["start"] : entry["end"]] for entry in answer.body)


def test_cost_counts_every_window_and_micro_batches_keep_the_budget(archives: dict[str, Path]) -> None:
    ready = answerer(archives["bert"], max_tokens=8 * WINDOW)
    short, long = ready.prepare(
        [ready.decode(Payload({"question": QUESTIONS[0], "context": context})) for context in (TEXTS[1], PAGE)]
    )
    windows = len(long.windows)  # type: ignore[union-attr]
    assert windows > 5
    assert ready.cost(long) == Cost(windows * WINDOW)  # type: ignore[arg-type]
    assert ready.cost(short) == Cost(16)  # type: ignore[arg-type]
    sizes = []
    run = ready.engine.run
    ready.engine.run = lambda inputs: sizes.append(inputs["input_ids"].shape) or run(inputs)  # type: ignore[method-assign, func-returns-value]
    answers = serve(ready, [asked(QUESTIONS[0], PAGE[:700]), *[asked(*pair) for pair in PAIRS[:8]]] * 2)
    assert {answer.status for answer in answers} == {200}
    assert max(rows * length for rows, length in sizes) <= 8 * WINDOW
    assert len(sizes) < len(answers) / 2


def test_answers_do_not_depend_on_the_order_of_a_batch(handler: QuestionAnsweringHandler) -> None:
    alone = [serve(handler, [asked(*pair)])[0] for pair in PAIRS]
    order = list(range(len(PAIRS)))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        for position, answer in enumerate(serve(handler, [asked(*PAIRS[index]) for index in order])):
            assert_same(answer, alone[order[position]])


def assert_same(left: Answer, right: Answer) -> None:
    assert (left.status, right.status) == (200, 200)
    assert left.body["score"] == pytest.approx(right.body["score"], abs=1e-5)
    assert {**left.body, "score": 0} == {**right.body, "score": 0}


def test_answers_instances_may_share_a_context_or_a_question(handler: QuestionAnsweringHandler) -> None:
    questions = [{"question": question} for question in QUESTIONS[:2]]
    rows = [
        {"body": {"instances": questions, "context": PAGE, "top_k": 2}},
        json.dumps({"instances": [{"context": TEXTS[0]}], "question": QUESTIONS[0]}).encode(),
        *[asked(question, PAGE, top_k=2) for question in QUESTIONS[:2]],
        asked(QUESTIONS[0], TEXTS[0]),
    ]
    answers = [answer.body for answer in serve(handler, rows)]
    assert answers[:2] == [{"predictions": answers[2:4]}, {"predictions": answers[4:]}]


@pytest.mark.parametrize(
    ("row", "status", "type_", "words"),
    [
        (asked("Who? " * LIMIT, PAGE), 413, "TextTooLong", r"question: \d+ tokens; \d+ leave room for windows"),
        (asked("Who?", PAGE * 9), 413, "TextTooLong", r"context: \d+ tokens, \d+ windows; max_windows is 32\."),
        (asked("Who?", "x" * 50_001), 413, "TextTooLong", "context: 50001 characters; max_characters is 50000"),
        (asked(" ", "canary"), 400, "EmptyInput", "question: empty"),
        (asked("canary", "\n"), 400, "EmptyInput", "context: empty"),
        (asked("canary", "\u200b\u0001"), 400, "EmptyInput", "context: nothing that the tokenizer knows"),
        (asked("canary", "a\0"), 400, "InvalidText", "context: has a null character at position 1"),
        (asked("\ud800", "canary"), 400, "InvalidText", "question: has a lone surrogate"),
        ({"body": {"question": "canary"}}, 400, "UnknownShape", "context: must be a string"),
        ({"body": {"question": "canary", "context": ["canary"]}}, 400, "UnknownShape", "context: must be a string"),
        ("canary", 400, "UnknownShape", '{"question": ..., "context": ...}'),
        (asked("canary", "canary", text="canary"), 400, "UnknownOption", "Known options: top_k, max_answer_tokens"),
        (asked("canary", "canary", top_k=101), 400, "UnknownOption", "top_k: .*100"),
        (asked("canary", "canary", max_answer_tokens=0), 400, "UnknownOption", "max_answer_tokens"),
        (asked("canary", "canary", max_answer_tokens=129), 400, "UnknownOption", "max_answer_tokens: .*128"),
    ],
)
def test_answers_bad_question_has_its_own_error_and_changes_nobody_elses(
    handler: QuestionAnsweringHandler, row: Any, status: int, type_: str, words: str
) -> None:
    good = serve(handler, [asked(*pair) for pair in PAIRS[:4]])
    answers = serve(handler, [*[asked(*pair) for pair in PAIRS[:2]], row, *[asked(*pair) for pair in PAIRS[2:4]]])
    assert (answers[2].status, answers[2].body["type"]) == (status, type_)
    assert re.search(words, answers[2].body["message"])
    assert "canary" not in json.dumps(answers[2].body)
    for left, right in zip([*answers[:2], *answers[3:]], good, strict=True):
        assert_same(left, right)


def test_answers_and_log_hold_nobody_elses_text(
    handler: QuestionAnsweringHandler, caplog: pytest.LogCaptureFixture
) -> None:
    bad: list[Any] = [
        asked("qzqz", PAGE * 9),
        asked("qzqz " * LIMIT, PAGE),
        "qzqz",
        asked("qzqz", "qzqz", top_k="qzqz"),
    ]
    rows = [row for pair in PAIRS for row in (asked(*pair), asked("qzqz?", "qzqz " + pair[1], top_k=9))]
    answers = serve(handler, rows + bad)
    assert "qzqz" in json.dumps([answer.body for answer in answers[1 : len(rows) : 2]])
    assert "qz" not in json.dumps([answer.body for answer in [*answers[0 : len(rows) : 2], *answers[len(rows) :]]])
    assert "qz" not in caplog.text


def test_answers_many_questions_over_one_long_context_are_too_much_work(archives: dict[str, Path]) -> None:
    ready = answerer(archives["bert"], max_request_characters=3 * len(PAGE))
    shared = [{"instances": [{"question": "Who?"}] * count, "context": PAGE} for count in (2, 3)]
    few, many = serve(ready, [{"body": document} for document in shared])
    assert (few.status, many.status) == (200, 413)
    assert {prediction["error"]["type"] for prediction in many.body["predictions"]} == {"WorkTooLarge"}
    tokens = answerer(archives["bert"], max_request_tokens=400)
    # Every window of each context counts.
    few, many = serve(tokens, [asked("Who?", PAGE), {"body": shared[0]}])
    assert (few.status, many.status) == (200, 413)
    assert "max_request_tokens is 400" in many.body["predictions"][0]["error"]["message"]


def test_answers_longer_than_an_answer_may_be_are_413_for_their_question_alone(
    handler: QuestionAnsweringHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = replace(TUNING, most_characters=60)
    monkeypatch.setattr("handlers.tasks.question_answering.TUNING", most)
    one, many = serve(handler, [asked(*PAIRS[0], max_answer_tokens=1), asked(*PAIRS[0], top_k=100)])
    assert (one.status, many.status, many.body["type"]) == (200, 413, "ResponseTooLarge")


def test_answers_a_long_question_with_a_short_context_needs_no_windows(handler: QuestionAnsweringHandler) -> None:
    (answer,) = serve(handler, [asked("the " * 80, "The river.")])
    assert answer.status == 200


def test_answers_truncation_takes_the_first_windows(archives: dict[str, Path], oracles: dict[str, Oracle]) -> None:
    ready = answerer(archives["bert"], truncation=True, max_windows=2)
    (answer,) = serve(ready, [asked(QUESTIONS[0], PAGE)])
    encoded = oracles["bert"].tokenizer(
        QUESTIONS[0], PAGE, truncation="only_second", max_length=WINDOW, stride=STRIDE, return_overflowing_tokens=True
    )
    assert len(encoded.encodings) > 2
    end = int(np.max(encoded.encodings[1].offsets))
    assert_best(answer.body, PAGE, oracles["bert"].answers(QUESTIONS[0], PAGE[:end]), tolerance=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"doc_stride": WINDOW}, "doc_stride: 96 is not less than max_length 96"),
        ({"max_length": LIMIT + 1}, "max_length: 193 is more than the model's own 192"),
        ({"max_windows": 0}, "max_windows"),
    ],
)
def test_initialize_wrong_settings_are_refused(archives: dict[str, Path], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        answerer(archives["bert"], **settings)


def test_initialize_without_a_window_takes_the_models_limit_up_to_384(archives: dict[str, Path]) -> None:
    ready = answerer(archives["bert"], max_length=None, doc_stride=None)
    assert (ready.max_length, ready.doc_stride) == (LIMIT, LIMIT // 2)
