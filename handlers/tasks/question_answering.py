"""Extractive question answering: a question and a context become the parts of the context that answer it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from handlers.aliases import Array, Json
from handlers.engines import Engine, Outputs
from handlers.errors import InvalidBody, InvalidInput, ItemError, ResponseTooLarge, TextTooLong
from handlers.pipeline.values import Inputs, Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import Span, compare_spans
from handlers.protocol.output_tensors import Record, rankings
from handlers.protocol.requests import Payload
from handlers.text.answer_spans import (
    MOST_CHARACTERS,
    SPANS_PER_ANSWER,
    SPARE_SPANS,
    WINDOW_TOKENS,
    Passage,
    find_characters,
    find_spans,
    split_context,
)
from handlers.text.config import QuestionAnsweringConfig, QuestionAnsweringOptions
from handlers.text.encoders import Head
from handlers.text.inputs import read_text
from handlers.text.windowed import WindowsHandler

if TYPE_CHECKING:
    from tokenizers import Encoding


def _records(result: Record | Sequence[Record]) -> Sequence[Record]:
    return [result] if isinstance(result, Mapping) else result


def read_spans(task: Any, outputs: Outputs, items: Sequence[Passage]) -> list[Span]:
    if not all(np.isfinite(array).all() for array in outputs.values()):
        return [Span(-1, -1, math.nan, 0.0)] * len(items)  # without numbers there is no answer
    return [_read_span(each if isinstance(each, list) else [each]) for each in task.split(outputs, items)]


def _read_span(answers: Sequence[Mapping[str, Any]]) -> Span:
    first, *others = answers
    lead = first["score"] - (others[0]["score"] if others else 0.0)
    return Span(first["start"], first["end"], first["score"], lead)


class QuestionAnsweringHandler(WindowsHandler[QuestionAnsweringConfig, Passage]):
    """A long context runs in windows."""

    answer_kind = Kind("labels", 0.99, read_spans, compare_spans, {"top_k": 2}, Span)
    config_class = QuestionAnsweringConfig
    inputs = Inputs(frozenset({"question", "context"}), in_threads=False, are_shared=True)
    head = Head("AutoModelForQuestionAnswering", ("start_logits", "end_logits"), is_paired=True)
    options_class = QuestionAnsweringOptions
    results = Results(
        rankings({"answer": object, "score": np.float32, "start": np.int64, "end": np.int64}, _records), view="answers"
    )

    def load(self) -> Engine:
        engine = super().load()
        self.null_id = self.tokenizer.cls_token_id
        return engine

    def window_tokens(self) -> int:
        return min(self.max_length, WINDOW_TOKENS) if self.config.max_length is None else self.max_length

    def sample(self) -> Payload:
        return Payload({"question": "What comes next?", "context": "What went before decides what comes next."})

    def decode(self, payload: Payload) -> Passage:
        """Check {"question": ..., "context": ...}; either may be beside "instances", for all of them."""
        if not isinstance(payload.value, Mapping):
            raise InvalidBody('A question must be {"question": ..., "context": ...}.')
        question, context = (
            read_text(payload.value.get(name), name, self.config.max_characters) for name in ("question", "context")
        )
        if payload.allowance:  # a context beside "instances" is sent once, and tokenised for each question
            payload.allowance.take("characters", len(question) + len(context), self.config.max_request_characters)
        self.check(payload.options)
        return Passage(context, payload.options, question=question)

    def prepare(self, items: Sequence[Passage]) -> Sequence[Passage | ItemError]:
        """Tokenise all items in one call, and split contexts that are too long."""
        encodings = self.tokenizer(
            [item.question for item in items],
            [item.text for item in items],
            return_attention_mask=False,
            return_token_type_ids=True,
        ).encodings
        return [self._split(item, encoding) for item, encoding in zip(items, encodings, strict=True)]

    def _split(self, item: Passage, encoding: "Encoding") -> Passage | ItemError:
        limit = self.config.max_windows
        try:
            windows = split_context(encoding, self.max_length, self.stride(item.options), limit)
        except InvalidInput as error:
            return ItemError.of(error)
        if len(windows) > limit and not self.config.truncation:
            tokens = encoding.sequence_ids.count(1)
            count = len(range(0, tokens - self.stride(item.options), windows[1].offset))
            message = f"context: {tokens} tokens, {count} windows; max_windows is {limit}."
            return ItemError.of(TextTooLong(message))
        return replace(item, encoding=encoding, windows=windows[:limit])

    def split(self, outputs: Outputs, items: Sequence[Passage]) -> Sequence[object]:
        """Turn `start_logits` and `end_logits`, (windows, T), into {"answer", "score", "start", "end"} or a list."""
        rows = zip(outputs["start_logits"], outputs["end_logits"], strict=True)
        return [self._answers(item, list(islice(rows, len(item.windows)))) for item in items]

    def _answers(self, item: Passage, rows: Sequence[tuple[Array, Array]]) -> object:
        """Rank as transformers 4: equal words, in any place or case, are one answer with the sum of the scores."""
        options, encoding = item.options, item.encoding
        origin = item.windows[0].first
        found: dict[str, Json] = {}
        for window, (starts, ends) in zip(item.windows, rows, strict=True):
            spans = find_spans(
                starts,
                ends,
                window,
                has_null=window.ids[0] == self.null_id,
                max_tokens=options.max_answer_tokens,
                count=options.top_k * SPANS_PER_ANSWER + SPARE_SPANS if options.align_to_words else options.top_k,
            )
            for span in spans:
                start, end = find_characters(
                    encoding, origin + span.first, origin + span.last, align_to_words=options.align_to_words
                )
                answer = item.text[start:end]
                new = {"answer": answer, "score": 0.0, "start": start, "end": end}
                found.setdefault(answer.lower(), new)["score"] += span.score
        best = sorted(found.values(), key=lambda each: -each["score"])[: options.top_k]
        if sum(len(each["answer"]) for each in best) > MOST_CHARACTERS:
            message = f"The answers have more than {MOST_CHARACTERS} characters; ask for a smaller top_k."
            return ItemError.of(ResponseTooLarge(message))
        return best if options.top_k > 1 else best[0]
