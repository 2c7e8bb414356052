"""Cut a text into sentences, and put what became of them back where they stood. Pure.

text, language -> cut -> Document: sentences, and all that stands between them
answers, one for each sentence -> Document.joined -> text with the same line breaks, blank lines and spaces

sentencex (Wikimedia) knows the abbreviations and marks of some 300 languages. A line break always ends a sentence,
since it is kept where it was. What has neither letter nor digit is no sentence, and stays as it is, and so do the marks
of lists, headings, quotations and speech that a line begins with.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sentencex

# Where pyo3 puts what Rust's panics become in Python; they are no Exception.
PANICS = "pyo3_runtime"
# The language whose rules hold where nobody knows better; sentencex itself falls back on it.
DEFAULT_LANGUAGE = "en"
# What Markdown, mail and novels begin a line with.
_MARKS = re.compile(r"\s*(?:(?:[-*+>•–—]|#{1,6})\s+)*")
# Between sentences of these scripts and marks nobody writes a space: Han, Kana, Bopomofo and full-width forms, Thai,
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
        """Put answers in the places of the sentences.

        Two sentences without a space between, as in Chinese, get one where their answers are written with spaces.

        Args:
            answers: S of them.
        """
        parts = [self.between[0]]
        for index, answer in enumerate(answers):
            gap = self.between[index + 1]
            is_close = not gap and index + 1 < len(answers) and _need_space(answer, answers[index + 1])
            parts += [answer, " " if is_close else gap]
        return "".join(parts)


def cut(text: str, language: str = DEFAULT_LANGUAGE) -> Document:
    """Cut a text into sentences.

    Args:
        text: any; one without letters and digits is a single sentence.
        language: its code in ISO 639; rules for English hold where sentencex does not have it.

    Returns:
        The sentences and what stands between: together just the text.
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
    """Give the first character of each sentence, and the one behind its last."""
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
