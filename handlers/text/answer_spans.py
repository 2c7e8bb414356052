"""Cut a question's context into overlapping windows, and find answers in the model's logits. Pure.

encoding of question and context -> cut -> windows that the model can hold
logits of a window -> likeliest_spans -> spans of its context's tokens -> characters of the context
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import EmptyInput, TextTooLong
from handlers.probabilities import softmax
from handlers.text.config import QuestionAnsweringOptions
from handlers.text.inputs import Text

# Tokens of a window, those of the question and special ones included, and tokens of the context that neighbouring
# windows share: the max_length and doc_stride of transformers' question-answering pipeline.
WINDOW_TOKENS, SHARED_TOKENS = 384, 128
# Spans of each window that are looked at for every answer that is widened to words, and beyond these, as there.
SPANS_PER_ANSWER, SPARE_SPANS = 2, 10
# The most characters of all answers to a question; a token may have as many as the context.
MOST_CHARACTERS = 2**18


@dataclass(frozen=True, slots=True)
class Window:
    """The question and a part of the context: a row of a micro-batch.

    Attributes:
        ids, type_ids: its tokens and their segments as the model takes them, special tokens included.
        offset: the index of its first token of the context among all tokens of the context.
        first: the index of that token in `ids`.
        tokens: how many tokens of the context it has.
    """

    ids: Sequence[int]
    type_ids: Sequence[int]
    offset: int
    first: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Passage(Text[QuestionAnsweringOptions]):
    """One item, whose `text` is the context.

    Attributes:
        question: about the context.
        windows: the parts of the context; none until the batch is tokenised.
    """

    question: str = ""
    windows: Sequence[Window] = field(default=())


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of a context that may be the answer, as indices among the context's; and their probability."""

    score: float
    first: int
    last: int


def cut(encoding: Any, max_length: int, stride: int) -> list[Window]:
    """Cut a context into windows, in its order, as few as reach its end.

    Args:
        encoding: the tokenizer's, of question and context.
        max_length: the most tokens of a window.
        stride: how many tokens of the context neighbouring windows share.

    Raises:
        EmptyInput: the context has no tokens.
        TextTooLong: one window is not enough, and the question leaves no room for more than `stride` tokens in it.
    """
    ids, type_ids = encoding.ids, encoding.type_ids
    indices = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    if not indices:
        raise EmptyInput("context: nothing that the tokenizer knows.")
    context = range(indices[0], indices[-1] + 1)
    room = max_length - (len(ids) - len(context))
    fits = len(context) <= room
    if not fits and room <= stride:
        question = encoding.sequence_ids.count(0)
        limit = room - stride - 1 + question
        raise TextTooLong(f"question: {question} tokens; {limit} leave room for windows of so long a context.")
    windows = []
    for start in [context.start] if fits else range(context.start, context.stop - stride, room - stride):
        stop = min(start + room, context.stop)
        windows.append(
            Window(
                [*ids[: context.start], *ids[start:stop], *ids[context.stop :]],
                [*type_ids[: context.start], *type_ids[start:stop], *type_ids[context.stop :]],
                start - context.start,
                context.start,
                stop - start,
            )
        )
    return windows


def likeliest_spans(
    start_logits: NDArray[np.float32],
    end_logits: NDArray[np.float32],
    window: Window,
    *,
    has_null: bool,
    max_tokens: int,
    count: int,
) -> Iterator[Span]:
    """Find at most `count` spans of one window, likeliest first, each of at most `max_tokens` tokens.

    Args:
        start_logits, end_logits: (T,) float32, with padding or without.
        window: what the logits belong to.
        has_null: whether the first token, as the model's place for "no answer", has a share of the probability.
        max_tokens, count: see above.
    """
    starts = _probabilities(start_logits, window, has_null)
    ends = _probabilities(end_logits, window, has_null)
    width = min(max_tokens, len(ends))
    # scores[i, j]: from token i to token i + j. A span that ends before it starts or beyond the context has no place.
    followers = np.lib.stride_tricks.sliding_window_view(np.pad(ends, (0, width - 1)), width)
    scores = (starts[:, None] * followers).ravel()
    best = np.argpartition(-scores, count - 1)[:count] if count < len(scores) else np.arange(len(scores))
    best.sort()
    for index in best[np.argsort(-scores[best], kind="stable")].tolist():
        first, more = divmod(index, width)
        if first + more < window.tokens:
            yield Span(float(scores[index]), window.offset + first, window.offset + first + more)


def _probabilities(logits: NDArray[np.float32], window: Window, has_null: bool) -> NDArray[np.float64]:
    """Share the probability among the tokens of the window's context; only the null token may have a part of it."""
    null = logits[: int(has_null)]
    allowed = np.concatenate([null, logits[window.first : window.first + window.tokens]])
    return softmax(allowed.astype(np.float64))[len(null) :]


def characters(encoding: Any, first: int, last: int, *, align_to_words: bool) -> tuple[int, int]:
    """Find the characters of the context that its tokens from `first` to `last` of the encoding stand for.

    Returns:
        The index of the first character, and the one behind the last, widened to whole words if so wanted.
    """
    places = [encoding.token_to_chars(token) for token in (first, last)]
    words = [encoding.token_to_word(token) for token in (first, last)]
    # Tokens that a tokenizer finds before it looks for words belong to none; transformers then widens neither end.
    if align_to_words and None not in words:
        places = [encoding.word_to_chars(word, 1) for word in words]
    return places[0][0], places[1][1]
