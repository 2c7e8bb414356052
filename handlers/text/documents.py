"""Translate documents sentence by sentence: one text of a request becomes several items, and one answer again.

    Request: a payload for each text  -> divided -> Request: a payload for each sentence, and a form that joins
    text, language                    -> cut     -> Document: sentences, and all that stands between them
    results, one for each sentence    -> Joined.pack, Document.joined -> results, one for each text

In between, sentences are items that a client could have sent: each is decoded, scheduled and counted against the
budgets of its request.

sentencex (Wikimedia) knows the abbreviations and marks of some 300 languages. A line break always ends a sentence,
since it is kept where it was. A part without letters and digits is no sentence, and stays as it is, and so do the marks
of lists, headings, quotations and speech that a line begins with.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import sentencex

from handlers.errors import InvalidInput, ItemError, TextTooLong, WorkTooLarge
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import Form, Reply

# Where pyo3 puts what Rust's panics become in Python; they are no Exception.
PANICS = "pyo3_runtime"
# The language whose rules hold where the text's is not known; sentencex itself falls back on it.
DEFAULT_LANGUAGE = "en"
# What Markdown, mail and novels begin a line with.
_MARKS = re.compile(r"\s*(?:(?:[-*+>•–—]|#{1,6})\s+)*")
# Scripts and marks without spaces between sentences: Han, Kana, Bopomofo and full-width forms, Thai,
# Lao, Tibetan, Myanmar, Khmer. Blocks of Unicode 15.
_UNSPACED = re.compile("[\u2e80-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]")


@dataclass(frozen=True, slots=True)
class Document:
    """A text, cut.

    Attributes:
        sentences: S of them, without white space around.
        between: S + 1 parts of the text: what stands before the first, between two, after the last.
    """

    sentences: tuple[str, ...]
    between: tuple[str, ...]

    def joined(self, answers: Sequence[str]) -> str:
        """Put S answers in the places of the sentences.

        Two sentences without a space between, as in Chinese, get one where their answers are written with spaces.
        """
        parts = [self.between[0]]
        for index, answer in enumerate(answers):
            gap = self.between[index + 1]
            is_close = not gap and index + 1 < len(answers) and _need_space(answer, answers[index + 1])
            parts += [answer, " " if is_close else gap]
        return "".join(parts)


def cut(text: str, language: str = DEFAULT_LANGUAGE) -> Document:
    """Cut a text into sentences and what stands between them; without letters and digits it is a single sentence.

    The language is a code of ISO 639; rules for English hold where sentencex does not have it.
    """
    sentences, between, end = [], [], 0
    for start, stop in _spans(text, language):
        between.append(text[end:start])
        sentences.append(text[start:stop])
        end = stop
    if not sentences:
        inner = text.strip()
        start = text.index(inner)
        return Document((inner,), (text[:start], text[start + len(inner) :]))
    return Document(tuple(sentences), (*between, text[end:]))


def _spans(text: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield the first character of each sentence, and the one behind its last."""
    offset = 0
    for line, whole in zip(text.splitlines(), text.splitlines(keepends=True), strict=True):
        marks = _MARKS.match(line)
        start = marks.end() if marks else 0
        for found in segments(line[start:], language) if start < len(line) else ():
            # It may leave out punctuation that stands alone.
            start = max(start, line.find(found, start))
            stop = start + len(found)
            inner = found.strip()
            if any(character.isalnum() for character in inner):
                first = offset + line.index(inner, start)
                yield first, first + len(inner)
            start = stop
        offset += len(whole)


def segments(line: str, language: str) -> list[str]:
    """Cut one line with sentencex; where it panics, which it does for Kazakh and odd line breaks, it stays whole."""
    try:
        found: list[str] = sentencex.segment(language, line)
    except BaseException as error:
        # A panic of Rust's is none of Exception, and would end the worker.
        if type(error).__module__ != PANICS:
            raise
        return [line]
    return found


def _need_space(left: str, right: str) -> bool:
    return bool(left and right) and not (_UNSPACED.match(left[-1]) or _UNSPACED.match(right[0]))


TRANSLATION = "translation_text"


@dataclass(frozen=True, slots=True)
class Divided:
    """A text that is translated sentence by sentence.

    Attributes:
        document: its sentences.
        options: those of every sentence, unchecked.
        prefix: stands before every sentence.
        said: what its result has beside the translation.
    """

    document: Document
    options: Mapping[str, Any]
    prefix: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)

    def payloads(self) -> tuple[Payload, ...]:
        """Make an item of each sentence."""
        return tuple(Payload(self.prefix + sentence, self.options) for sentence in self.document.sentences)

    def result(self, results: Sequence[Any]) -> Any:
        """Make the text's result of its sentences'; the first error is that of the whole text, and says where."""
        for number, result in enumerate(results, 1):
            if isinstance(result, ItemError):
                # An error of the whole request, or one that befell all of them alike, is not about a sentence.
                is_shared = len(results) > 1 and all(other is result for other in results)
                is_own = result.type == TextTooLong.__name__
                if is_shared or (len(results) == 1 and not is_own):
                    return result
                return replace(result, message=f"Sentence {number} of {len(results)}: {result.message}")
        return {TRANSLATION: self.document.joined([result[TRANSLATION] for result in results]), **self.said}


@dataclass(frozen=True, slots=True)
class Joined:
    """Writes an answer in the form that was asked for, with one result for each text.

    Attributes:
        form: the request's own.
        texts: what became of each; None where it went on whole.
    """

    form: Form
    texts: tuple[Divided | None, ...]

    def pack(self, results: Sequence[Any]) -> Reply:
        """There is a result for each sentence."""
        remaining = iter(results)
        joined = [
            next(remaining) if text is None else text.result(list(islice(remaining, len(text.document.sentences))))
            for text in self.texts
        ]
        return self.form.pack(joined)


def divided(request: Request, divide: Callable[[Payload], Divided | None], max_sentences: int) -> Request:
    """Put sentences in the places of the texts that are to be translated so.

    Args:
        request: as it was unpacked.
        divide: cuts a text; None where it goes on whole. It may raise InvalidInput.
        max_sentences: the most sentences of all such texts; a text with more than are left is an error of the request.

    Returns:
        The request itself where nothing is cut.
    """
    payloads: list[Payload | ItemError] = []
    texts: list[Divided | None] = []
    count = 0
    for payload in request.payloads:
        outcome = _outcome(payload, divide)
        if isinstance(outcome, Divided):
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
    return replace(request, payloads=tuple(payloads), form=Joined(request.form, tuple(texts)))


def _outcome(payload: Payload | ItemError, divide: Callable[[Payload], Divided | None]) -> Divided | ItemError | None:
    if isinstance(payload, ItemError):
        return payload
    try:
        return divide(payload)
    except InvalidInput as error:
        return ItemError.of(error)
