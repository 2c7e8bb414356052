"""Question answering gives transformers' answers and scores, in contexts of one window and of many."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.pipelines.document_question_answering import select_starts_ends

from handlers.archive_files import CHECKPOINT
from handlers.tasks.question_answering import QuestionAnsweringHandler
from tests.handlers.serving import CANARY, Bad, Log, Made, Patch, assert_own_answers, serve, started
from tests.oracle import is_apart
from tests.tables import table
from tests.tiny_models import LIMIT, PAGE, TEXTS

# Tokens of a window, and of its overlap: short windows keep the tests quick.
WINDOW, STRIDE = 96, 32
QUESTIONS = ("Who wrote the letter?", "부산으로 가는 기차는 몇 시에 떠납니까?", "Où? 🌉", "מי כתבה מכתב?")
CONTEXTS = (*TEXTS, PAGE, PAGE.replace("\n", " ")[200:900])
PAIRS = [(QUESTIONS[index % len(QUESTIONS)], context) for index, context in enumerate(CONTEXTS)]


class Oracle:
    """The question-answering pipeline of transformers 4, with what 5 has left of it."""

    def __init__(self, archive: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(archive / CHECKPOINT)
        network = transformers.AutoModelForQuestionAnswering
        self.network = network.from_pretrained(archive / CHECKPOINT, dtype=torch.float32).eval()
        self.run = cache(self._run)

    def _run(self, question: str, context: str) -> list[tuple[Any, Any]]:
        options = {"truncation": "only_second", "return_overflowing_tokens": True}
        encoded = self.tokenizer(question, context, max_length=WINDOW, stride=STRIDE, **options)
        found = []
        for index, encoding in enumerate(encoded.encodings):
            inputs = {name: torch.tensor([encoded[name][index]]) for name in self.tokenizer.model_input_names}
            with torch.inference_mode():
                found.append((encoding, self.network(**inputs)))
        return found

    def answers(self, question: str, context: str, top_k: int, is_aligned: bool) -> list[dict[str, Any]]:
        """The best answers; one text, in any case, is one answer, with the scores of its spans in all windows."""
        whole = self.tokenizer(question, context).encodings[0]
        found: list[dict[str, Any]] = []
        for index, (encoding, result) in enumerate(self.run(question, context)):
            places = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
            if index == 0:
                begin, step = places[0] - (len(places) - STRIDE), len(places) - STRIDE
            begin += step
            # 1 where no answer may be: all but the context, and the first token, which means "no answer".
            outside = np.array([[0 if i in (0, *places) else 1 for i in range(len(encoding.ids))]])
            logits = (each.double().numpy() for each in (result.start_logits, result.end_logits))
            most = top_k * 2 + 10 if is_aligned else top_k
            spans_of = select_starts_ends(*logits, outside, np.ones_like(outside), top_k=most)
            for start, end, score in zip(*spans_of[:3], strict=True):
                if {start, end} - {*places}:  # the first token, with a score of zero
                    continue
                # A window may begin or end within a word: words are those of the whole context.
                tokens = [begin + token - places[0] for token in (start, end)]
                spans = [whole.token_to_chars(token) for token in tokens]
                words = [whole.token_to_word(token) for token in tokens]
                if is_aligned and None not in words:
                    spans = [whole.word_to_chars(word, 1) for word in words]
                answer = context[spans[0][0] : spans[1][1]]
                if equal := next((each for each in found if each["answer"].lower() == answer.lower()), None):
                    equal["score"] += score
                else:
                    found.append({"answer": answer, "score": score, "start": spans[0][0], "end": spans[1][1]})
        return sorted(found, key=lambda each: -each["score"])[:top_k]

    def decided(self, pair: tuple[str, str], top_k: int, is_aligned: bool, tolerance: float) -> Any:
        """The best answers in their order; None if some are so near to each other that another order is right, too."""
        wanted, more = (self.answers(*pair, most, is_aligned) for most in (top_k, top_k + 1))
        if all(is_apart([each["score"] for each in best], tolerance) for best in (wanted, more)):
            return [{**each, "score": pytest.approx(each["score"], abs=tolerance)} for each in wanted]
        return None


def answerer(archive: Path, **settings: Any) -> QuestionAnsweringHandler:
    given = {"precision": "fp32", "threads": 1, "engine": "torch", "max_length": WINDOW, "doc_stride": STRIDE}
    return started(QuestionAnsweringHandler(), archive, {**given, **settings})


def asked(question: str, context: str, **options: Any) -> dict[str, Any]:
    return {"body": {"question": question, "context": context, **options}}


BAD: list[Bad] = [
    (asked("Who? " * LIMIT, PAGE), 413, "TextTooLong", r"question: \d+ tokens; at most \d+ beside a context"),
    (asked("Who?", PAGE * 9), 413, "TextTooLong", r"context: \d+ tokens, \d+ windows; max_windows is 32\."),
    (asked(" ", "qzqz"), 400, "EmptyInput", "question: empty"),
    ({"body": {"question": "qzqz"}}, 400, "InvalidBody", "context: must be a string"),
    ("qzqz", 400, "InvalidBody", '{"question": ..., "context": ...}'),
    (asked("qzqz", "qzqz", text="qzqz"), 400, "InvalidOption", "Known options: top_k, max_answer_tokens"),
    (asked("qzqz", "qzqz", top_k=101), 400, "InvalidOption", "top_k: .*100"),
]
# Bytes are tokens of RoBERTa.
NO_TOKEN = (asked("qzqz", "\u200b\u0001"), 400, "EmptyInput", "context: contains no token of the model")
BUILT, BF16 = pytest.mark.builds, {"precision": "bf16"}


@table(
    *(pytest.param(kind, {"engine": "openvino"}, marks=BUILT) for kind in ("bert", "distilbert", "roberta")),
    ("bert", {"engine": "torch"}),
    pytest.param("bert", {"engine": "torch", **BF16}, marks=BUILT),
    pytest.param("bert", {"engine": "openvino", **BF16}, marks=[pytest.mark.bf16, BUILT]),
)
def test_any_batch_is_answered_as_by_torch_in_fp32(kind: str, settings: Any, tiny_archive: Made, caplog: Log) -> None:
    # bf16 rounds each factor by 2**-9, and heads are scaled up by eight: few answers are that far apart.
    tolerance, least = (0.1, 4) if "precision" in settings else (1e-4, 40)
    archive = tiny_archive(kind, "question_answering", engine=settings["engine"])
    oracle = Oracle(archive)
    good = [
        (asked(*pair, top_k=most, align_to_words=aligned), oracle.decided(pair, most, aligned, tolerance))
        for pair in PAIRS
        for most in (1, 3)
        for aligned in (True, False)
    ]
    assert sum(wanted is not None for _, wanted in good) >= least
    good.append((asked("qzqz?", f"qzqz {PAGE}", top_k=9), None))

    def same(found: Any, wanted: Any) -> bool:
        return wanted is None or (found if isinstance(found, list) else [found]) == wanted

    bad = BAD if kind == "roberta" else [*BAD, NO_TOKEN]
    assert_own_answers(answerer(archive, **settings), good, bad, same)
    assert CANARY not in caplog.text


@table(
    ({"max_request_characters": 3 * len(PAGE)}, f"max_request_characters, {3 * len(PAGE)}"),
    ({"max_request_tokens": 800}, "max_request_tokens is 800"),
)
def test_many_questions_over_one_long_context_are_too_much_work(settings: Any, words: str, tiny_archive: Made) -> None:
    shared = [{"instances": [{"question": "Who?"}] * count, "context": PAGE} for count in (1, 3)]
    handler = answerer(tiny_archive("bert", "question_answering", engine="torch"), **settings)
    few, many = serve(handler, [{"body": document} for document in shared])
    assert (few.status, many.status) == (200, 413)
    errors = [prediction["error"] for prediction in many.body["predictions"]]
    assert {error["type"] for error in errors} == {"WorkTooLarge"}
    assert words in errors[-1]["message"]


def test_answers_too_long_are_413_for_their_question_alone(tiny_archive: Made, monkeypatch: Patch) -> None:
    handler = answerer(tiny_archive("bert", "question_answering", engine="torch"))
    monkeypatch.setattr("handlers.tasks.question_answering.MOST_CHARACTERS", 60)
    one, many = serve(handler, [asked(*PAIRS[0], max_answer_tokens=1), asked(*PAIRS[0], top_k=100)])
    assert (one.status, many.status, many.body["type"]) == (200, 413, "ResponseTooLarge")
