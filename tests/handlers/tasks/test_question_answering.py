"""Question answering finds the best answer there is, by its definition, in contexts of one window and of many."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.pipeline.micro_batches import Cost
from handlers.protocol.requests import Payload
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.text.answer_spans import TUNING
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import serve, started
from tests.handlers.tasks.answers_oracle import STRIDE, WINDOW, Oracle, assert_best
from tests.tiny_models import LIMIT, PAGE, TEXTS

KINDS = ("bert", "distilbert", "roberta")
QUESTIONS = ("Who wrote the letter?", "부산으로 가는 기차는 몇 시에 떠납니까?", "Où? 🌉", "מי כתבה מכתב?")
# Contexts of one token, of one window and of many.
CONTEXTS = (*TEXTS, PAGE, PAGE.replace("\n", " ")[200:900])
PAIRS = [(QUESTIONS[index % len(QUESTIONS)], context) for index, context in enumerate(CONTEXTS)]


@pytest.fixture(scope="module")
def archives(tiny_archive: Callable[..., Path]) -> Callable[[str], Path]:
    return lambda kind: tiny_archive(kind, "question_answering")


@pytest.fixture(scope="module")
def bert(archives: Callable[[str], Path]) -> Path:
    return archives("bert")


def answerer(archive: Path, **settings: Any) -> QuestionAnsweringHandler:
    windows = {"max_length": WINDOW, "doc_stride": STRIDE}
    ready = started(QuestionAnsweringHandler(), archive, {"precision": "fp32", "threads": 1, **windows, **settings})
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
    ("kind", "settings", "tolerance"),
    [
        *((kind, {"engine": "openvino"}, 1e-4) for kind in KINDS),
        ("bert", {"engine": "torch"}, 1e-4),
        # bf16 rounds each factor by 2**-9, and heads are scaled up by eight.
        pytest.param("bert", {"engine": "openvino", "precision": "bf16"}, 0.1, marks=pytest.mark.bf16),
    ],
)
def test_answers_a_mixed_batch_equals_fp32_torch_question_by_question(
    archives: Callable[[str], Path], kind: str, settings: dict[str, Any], tolerance: float
) -> None:
    oracle = Oracle(archives(kind))
    answers = serve(answerer(archives(kind), **settings), [asked(*pair) for pair in PAIRS])
    for pair, answer in zip(PAIRS, answers, strict=True):
        assert answer.status == 200, answer.body
        assert_best(answer.body, pair[1], oracle.answers(*pair), tolerance)


def test_answers_top_k_are_the_oracles_best_places_in_their_order(
    handler: QuestionAnsweringHandler, oracle: Oracle
) -> None:
    answers = serve(handler, [asked(*pair, top_k=4, max_answer_tokens=3) for pair in PAIRS])
    for pair, answer in zip(PAIRS, answers, strict=True):
        expected = oracle.answers(*pair, max_tokens=3)
        best = sorted(expected.values(), reverse=True)[:4]
        assert [entry["score"] for entry in answer.body] == pytest.approx(best, abs=1e-4)
        for entry in answer.body:
            assert entry["score"] == pytest.approx(expected[entry["start"], entry["end"]], abs=1e-4)
            assert entry["answer"] == pair[1][entry["start"] : entry["end"]]


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
    options: list[dict[str, Any]] = [{}, {"top_k": 3}, {"max_answer_tokens": 1}]
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


def test_answers_never_end_before_they_start_and_are_places_of_the_whole_context(
    handler: QuestionAnsweringHandler,
) -> None:
    latest = 0
    for (_, context), answer in zip(
        PAIRS, serve(handler, [asked(*pair, top_k=100, align_to_words=False) for pair in PAIRS]), strict=True
    ):
        for entry in answer.body:
            assert 0 <= entry["start"] <= entry["end"] <= len(context)
            assert entry["answer"] == context[entry["start"] : entry["end"]]
            latest = max(latest, entry["start"])
    assert latest > 600


def test_cost_counts_every_window_and_micro_batches_keep_the_budget(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = answerer(bert, max_tokens=8 * WINDOW)
    short, long = ready.prepare(
        [ready.decode(Payload({"question": QUESTIONS[0], "context": context})) for context in (TEXTS[1], PAGE)]
    )
    windows = len(long.windows)  # type: ignore[union-attr]
    assert windows > 5
    assert (ready.cost(short), ready.cost(long)) == (Cost(16), Cost(windows * WINDOW))  # type: ignore[arg-type]
    sizes: list[tuple[int, int]] = []
    run = ready.engine.run

    def counted(inputs: Any) -> Any:
        sizes.append(inputs["input_ids"].shape)
        return run(inputs)

    monkeypatch.setattr(ready.engine, "run", counted)
    answers = serve(ready, [asked(QUESTIONS[0], PAGE[:700]), *[asked(*pair) for pair in PAIRS[:8]]] * 2)
    assert {answer.status for answer in answers} == {200}
    assert max(rows * length for rows, length in sizes) <= 8 * WINDOW
    assert len(sizes) < len(answers) / 2


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
    monkeypatch.setattr("handlers.tasks.question_answering.TUNING", replace(TUNING, most_characters=60))
    one, many = serve(handler, [asked(*PAIRS[0], max_answer_tokens=1), asked(*PAIRS[0], top_k=100)])
    assert (one.status, many.status, many.body["type"]) == (200, 413, "ResponseTooLarge")


def test_answers_a_long_question_with_a_short_context_needs_no_windows(handler: QuestionAnsweringHandler) -> None:
    (answer,) = serve(handler, [asked("the " * 80, "The river.")])
    assert answer.status == 200


def test_answers_truncation_takes_the_first_windows(bert: Path, oracle: Oracle) -> None:
    (answer,) = serve(answerer(bert, truncation=True, max_windows=2), [asked(QUESTIONS[0], PAGE)])
    encoded = oracle.tokenizer(
        QUESTIONS[0], PAGE, truncation="only_second", max_length=WINDOW, stride=STRIDE, return_overflowing_tokens=True
    )
    assert len(encoded.encodings) > 2
    end = int(np.max(encoded.encodings[1].offsets))
    assert_best(answer.body, PAGE, oracle.answers(QUESTIONS[0], PAGE[:end]), tolerance=1e-4)


def test_initialize_without_a_window_takes_the_models_limit_up_to_384(bert: Path) -> None:
    ready = answerer(bert, max_length=None, doc_stride=None)
    assert (ready.max_length, ready.doc_stride) == (LIMIT, LIMIT // 2)
