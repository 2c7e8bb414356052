"""Translate documents sentence by sentence: one text of a request becomes several items, and one answer again.

    Request: a payload for each text  -> divided -> Request: a payload for each sentence, and a form that joins
    results, one for each sentence    -> Joined.pack -> results, one for each text -> the request's own form

All between goes on as if the client had sent the sentences: they are decoded, scheduled, counted against the budgets of
their request and put into micro-batches one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from handlers.errors import InvalidInput, ItemError, TextTooLong, WorkTooLarge
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import Form, Reply
from handlers.text.sentences import Document

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
        """See `Form`; there is a result for each sentence."""
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
