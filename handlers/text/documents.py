"""Translate documents sentence by sentence: a text of a request becomes several items, and one answer again.

    Request: a payload for each text -> divide_texts -> Request: a payload for each sentence, and a form that joins
    text, language                   -> split_text   -> Document: sentences, and the text between them
    results, one for each sentence   -> JoiningForm.pack, Document.join_answers -> results, one for each text

sentencex (Wikimedia) knows the abbreviations and marks of some 300 languages. A line break always ends a sentence,
since it keeps its place. A part without letters and digits is not a sentence and stays as it is, and so do the marks of
lists, headings, quotations and speech at the beginning of a line.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import sentencex

from handlers.errors import InvalidInput, ItemError, TextTooLong, WorkTooLarge
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import Form, Response

PANICS = "pyo3_runtime"  # the module of pyo3's exceptions for Rust's panics; they are not an Exception
DEFAULT_LANGUAGE = "en"  # the language whose rules apply if the text's is unknown; sentencex's own default
_MARKS = re.compile(r"\s*(?:(?:[-*+>•–—]|#{1,6})\s+)*")  # the beginnings of a line in Markdown, mail and novels
# Scripts and marks without spaces between sentences: Han, Kana, Bopomofo and full-width forms, Thai,
# Lao, Tibetan, Myanmar, Khmer. Blocks of Unicode 15.
_UNSPACED = re.compile("[\u2e80-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]")


@dataclass(frozen=True, slots=True)
class Document:
    sentences: tuple[str, ...]  # S of them, without white space around
    between: tuple[str, ...]  # S + 1 parts: before the first sentence, between two, after the last

    def join_answers(self, answers: Sequence[str]) -> str:
        """Replace the sentences by S answers, spaced if these are written with spaces, as of Chinese."""
        parts = [self.between[0]]
        for index, answer in enumerate(answers):
            gap = self.between[index + 1]
            is_close = not gap and index + 1 < len(answers) and _need_space(answer, answers[index + 1])
            parts += [answer, " " if is_close else gap]
        return "".join(parts)


def split_text(text: str, language: str = DEFAULT_LANGUAGE) -> Document:
    """Split a text into sentences, by the rules of a language's code of ISO 639 or else of English."""
    sentences, between, end = [], [], 0
    for start, stop in _find_sentences(text, language):
        between.append(text[end:start])
        sentences.append(text[start:stop])
        end = stop
    if not sentences:
        inner = text.strip()
        start = text.index(inner)
        return Document((inner,), (text[:start], text[start + len(inner) :]))
    return Document(tuple(sentences), (*between, text[end:]))


def find_sentences(text: str) -> list[tuple[int, int]]:
    """Return the index of each sentence's first character, and the index behind its last; all of a text without one."""
    return [*_find_sentences(text, DEFAULT_LANGUAGE)] or [(0, len(text))]


def _find_sentences(text: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield the index of each sentence's first character, and the index behind its last."""
    offset = 0
    for line, whole in zip(text.splitlines(), text.splitlines(keepends=True), strict=True):
        marks = _MARKS.match(line)
        start = marks.end() if marks else 0
        for found in segment_line(line[start:], language) if start < len(line) else ():
            start = max(start, line.find(found, start))  # sentencex may leave out punctuation between sentences
            stop = start + len(found)
            inner = found.strip()
            if any(character.isalnum() for character in inner):
                first = offset + line.index(inner, start)
                yield first, first + len(inner)
            start = stop
        offset += len(whole)


def segment_line(line: str, language: str) -> list[str]:
    """Segment one line with sentencex; a line stays whole if it panics, as for Kazakh and odd line breaks."""
    try:
        found: list[str] = sentencex.segment(language, line)
    except BaseException as error:
        if type(error).__module__ != PANICS:  # a panic is not an Exception, and would end the worker
            raise
        return [line]
    return found


def _need_space(left: str, right: str) -> bool:
    return bool(left and right) and not (_UNSPACED.match(left[-1]) or _UNSPACED.match(right[0]))


TRANSLATION = "translation_text"  # the field of an answer


@dataclass(frozen=True, slots=True)
class DividedText:
    """A text that is translated sentence by sentence."""

    document: Document
    options: Mapping[str, object]  # of every sentence, unchecked
    prefix: str = ""  # before every sentence
    fields: Mapping[str, object] = field(default_factory=dict)  # of its result, beside the translation

    def payloads(self) -> tuple[Payload, ...]:
        return tuple(Payload(self.prefix + sentence, self.options) for sentence in self.document.sentences)

    def result(self, results: Sequence[Any]) -> Any:
        """Join the sentences' results; the first error is the error of the whole text, and names its sentence."""
        for number, result in enumerate(results, 1):
            if isinstance(result, ItemError):
                # An error of the whole request, or of all sentences, is not about one sentence.
                is_shared = len(results) > 1 and all(other is result for other in results)
                is_own = result.type == TextTooLong.__name__
                if is_shared or (len(results) == 1 and not is_own):
                    return result
                return replace(result, message=f"Sentence {number} of {len(results)}: {result.message}")
        return {TRANSLATION: self.document.join_answers([result[TRANSLATION] for result in results]), **self.fields}


@dataclass(frozen=True, slots=True)
class JoiningForm:
    """Writes an answer in the request's form, with one result for each text."""

    form: Form  # the request's own
    texts: tuple[DividedText | None, ...]  # None for a text that is not divided

    def pack(self, results: Sequence[object]) -> Response:
        remaining = iter(results)
        joined = [
            next(remaining) if text is None else text.result(list(islice(remaining, len(text.document.sentences))))
            for text in self.texts
        ]
        return self.form.pack(joined)


def divide_texts(request: Request, divide: Callable[[Payload], DividedText | None], max_sentences: int) -> Request:
    """Replace texts of a request by their sentences."""
    payloads: list[Payload | ItemError] = []
    texts: list[DividedText | None] = []
    count = 0
    for payload in request.payloads:
        outcome = _divide(payload, divide)
        if isinstance(outcome, DividedText):
            count += len(outcome.document.sentences)
            if count <= max_sentences:
                payloads += outcome.payloads()
                texts.append(outcome)
                continue
            outcome = ItemError.of(
                WorkTooLarge(f"The request has {count} sentences or more; max_sentences is {max_sentences}.")
            )
        payloads.append(payload if outcome is None else outcome)
        texts.append(None)
    if not any(texts):
        return replace(request, payloads=tuple(payloads))
    return replace(request, payloads=tuple(payloads), form=JoiningForm(request.form, tuple(texts)))


def _divide(
    payload: Payload | ItemError, divide: Callable[[Payload], DividedText | None]
) -> DividedText | ItemError | None:
    if isinstance(payload, ItemError):
        return payload
    try:
        return divide(payload)
    except InvalidInput as error:
        return ItemError.of(error)
