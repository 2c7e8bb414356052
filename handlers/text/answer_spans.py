"""Split a question's context into overlapping windows, and find answers in the model's logits. Pure.

encoding of question and context -> split_context -> windows that fit the model
logits of a window -> find_spans -> spans of the context's tokens -> find_characters -> characters of the context
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import EmptyInput, TextTooLong
from handlers.probabilities import softmax
from handlers.text.config import QuestionAnsweringOptions
from handlers.text.windows import Window, Windowed, split_encoding

if TYPE_CHECKING:
    from tokenizers import Encoding

# Tokens of a window, question and special tokens included: max_length of transformers' question-answering pipeline.
WINDOW_TOKENS = 384
SPANS_PER_ANSWER = 2  # spans of each window for every answer that is widened to words, as in the pipeline
SPARE_SPANS = 10  # spans of each window beside these, as in the pipeline
# The most characters of all answers to a question: a single token may be as long as the context.
MOST_CHARACTERS = 2**18


@dataclass(frozen=True, slots=True)
class Passage(Windowed[QuestionAnsweringOptions]):
    """One item, whose `text` is the context."""

    question: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of a context that may be the answer, by their indices among the context's; and their probability."""

    score: float
    first: int
    last: int


def split_context(encoding: "Encoding", max_length: int, stride: int, most: int) -> list[Window]:
    """Split a context into as few windows as cover it, in its order; see `split_encoding`."""
    if windows := split_encoding(encoding, 1, max_length, stride, most):
        return windows
    question, context = map(encoding.sequence_ids.count, (0, 1))
    if not context:
        raise EmptyInput("context: contains no token of the model.")
    limit = max_length - (len(encoding.ids) - context) - stride - 1 + question
    raise TextTooLong(f"question: {question} tokens; at most {limit} beside a context of this length.")


def find_spans(
    start_logits: NDArray[np.float32],
    end_logits: NDArray[np.float32],
    window: Window,
    *,
    has_null: bool,
    max_tokens: int,
    count: int,
) -> Iterator[Span]:
    """Find at most `count` likely spans of up to `max_tokens`; with `has_null`, the first token is "no answer"."""
    starts = _share_probability(start_logits, window, has_null)
    ends = _share_probability(end_logits, window, has_null)
    width = min(max_tokens, len(ends))
    # scores[i, j]: from token i to token i + j, so no span ends before it starts, or outside the context.
    followers = np.lib.stride_tricks.sliding_window_view(np.pad(ends, (0, width - 1)), width)
    scores = (starts[:, None] * followers).ravel()
    best = np.argpartition(-scores, count - 1)[:count] if count < len(scores) else np.arange(len(scores))
    best.sort()
    for index in best[np.argsort(-scores[best], kind="stable")].tolist():
        first, more = divmod(index, width)
        if first + more < window.tokens:
            yield Span(float(scores[index]), window.offset + first, window.offset + first + more)


def _share_probability(logits: NDArray[np.float32], window: Window, has_null: bool) -> NDArray[np.float64]:
    """Share the probability among the context's tokens of a window, and the null token."""
    null = logits[: int(has_null)]
    allowed = np.concatenate([null, logits[window.first : window.first + window.tokens]])
    return softmax(allowed.astype(np.float64))[len(null) :]


def find_characters(encoding: Any, first: int, last: int, *, align_to_words: bool) -> tuple[int, int]:
    """Return the context's characters from token `first` to `last`: the first index, and the one behind the last."""
    places = [encoding.token_to_chars(token) for token in (first, last)]
    words = [encoding.token_to_word(token) for token in (first, last)]
    # A token that the tokenizer finds before words belongs to no word; transformers then widens neither end.
    if align_to_words and None not in words:
        places = [encoding.word_to_chars(word, 1) for word in words]
    return places[0][0], places[1][1]
