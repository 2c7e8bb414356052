"""Turn the text of a request into checked text, and token ids into padded arrays. Pure.

payload      -> text_of -> read_text   -> str: the one place for UTF-8, null characters, emptiness and characters
token ids    -> tokenised              -> the item with its tokens, or the error of a text that has too many
lists of ids -> padded_rows            -> arrays of one length, and the mask of their tokens
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from handlers.engines import padded
from handlers.errors import EmptyInput, InvalidBody, InvalidText, ItemError, TextTooLong
from handlers.protocol.requests import Payload

Options = TypeVar("Options")

# Lengths that micro-batches are padded to, in tokens: (most tokens, multiple), ascending; up to so many tokens, a
# length is rounded up to that multiple, and beyond to the last. An engine prepares kernels for every shape it meets
# (OpenVINO takes 4 to 6 ms for one), so the lengths are few: 20 up to 512 tokens.
_STEPS, _LAST_STEP = ((64, 8), (128, 16), (256, 32), (1024, 64)), 128

# Tokens of an answer where the model's own files name no limit; the 20 of transformers' GenerationConfig cuts most
# sentences.
MOST_ANSWER_TOKENS = 256
# Tokens of an answer for each of its text, and beside these, since a number may become a sentence. English into French
# takes 1.1 in the mean and 1.7 at most, on the 200 sentences of the tests; other vocabularies may take twice as many.
ANSWER_FACTOR, ANSWER_FLOOR = 3, 32


class Tokens(Protocol):
    """A row of a micro-batch: token ids, and the segment of each."""

    @property
    def ids(self) -> Sequence[int]:
        """The token ids, special ones included."""

    @property
    def type_ids(self) -> Sequence[int]:
        """The segment of each token."""


@dataclass(frozen=True, slots=True)
class Text(Generic[Options]):
    """One item of a text task.

    Attributes:
        text: the text as the client sent it, checked.
        options: the options of this item.
        ids: its token ids, special ones included; none until the batch is tokenised.
        type_ids: the segment of each token, where the model has segments.
        encoding: the tokenizer's record of its tokens, a tokenizers.Encoding, where answers are places in the text.
        pair: a second text, where the model takes two.
    """

    text: str
    options: Options
    ids: Sequence[int] = field(default=())
    type_ids: Sequence[int] = field(default=())
    encoding: Any = None
    pair: str | None = None


Item = TypeVar("Item", bound=Text[Any])


def text_of(payload: Payload, max_characters: int) -> str:
    """Read the text of an item that has one: the raw body, or the field `text` of a JSON object; see `read_text`."""
    value = payload.value["text"] if isinstance(payload.value, Mapping) else payload.value
    return read_text(value, "text", max_characters)


def read_text(value: Any, name: str, max_characters: int) -> str:
    """Check one text.

    Args:
        value: the raw body, or one field of a JSON object.
        name: the name of the field, for the message.
        max_characters: a text with more characters is refused.

    Returns:
        The text as it was sent, white space at its ends included: offsets of an answer count from its start.

    Raises:
        InvalidBody: it is no text.
        InvalidText: it is not UTF-8, or has a lone surrogate or a null character.
        EmptyInput: it has nothing but white space.
        TextTooLong: it has more than `max_characters`.
    """
    if isinstance(value, bytes | bytearray):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidText(f"{name}: not valid UTF-8 at byte {error.start}.") from None
    if not isinstance(value, str):
        raise InvalidBody(f"{name}: must be a string.")
    if len(value) > max_characters:
        raise TextTooLong(f"{name}: {len(value)} characters; max_characters is {max_characters}.")
    if not value.strip():
        raise EmptyInput(f"{name}: empty.")
    if "\0" in value:
        raise InvalidText(f"{name}: has a null character at position {value.index(chr(0))}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidText(f"{name}: has a lone surrogate at position {error.start}.") from None
    return value


def tokenised(
    item: Item, ids: Sequence[int], max_length: int, type_ids: Sequence[int] = (), encoding: Any = None
) -> Item | ItemError:
    """Copy an item and add its tokens; see `Text`.

    Returns:
        The item; or the ItemError of TextTooLong where there are more tokens than `max_length`, which the model takes,
        and of EmptyInput where there are none.
    """
    if not ids:
        return ItemError.of(EmptyInput("text: nothing that the tokenizer knows."))
    if len(ids) > max_length:
        return ItemError.of(TextTooLong(f"text: {len(ids)} tokens; max_length is {max_length}."))
    return replace(item, ids=ids, type_ids=type_ids, encoding=encoding)


def rounded_length(length: int, limit: int) -> int:
    """Find the least of the few padded lengths that holds `length` tokens, but no more than the model's `limit`."""
    step = next((step for bound, step in _STEPS if length <= bound), _LAST_STEP)
    return max(length, min(limit, -(-length // step) * step))


def padded_rows(
    rows: Sequence[Sequence[int]], length: int, pad_id: int, *, is_left: bool = False
) -> dict[str, NDArray[np.int64]]:
    """Pad B rows of at most `length` token ids, on the right or on the left, and mask the padding.

    Returns:
        `input_ids` and `attention_mask`, (B, length) int64 each; the mask is 1 at tokens and 0 at padding.
    """
    mask = padded([[1] * len(row) for row in rows], length, 0, is_left=is_left)
    return {"input_ids": padded(rows, length, pad_id, is_left=is_left), "attention_mask": mask}


@dataclass(frozen=True, slots=True)
class AnswerLengths:
    """How many tokens the answers of a model may have.

    Attributes:
        usual: the most tokens where the request does not say, however long the source is.
        limit: the most that may be asked for.
    """

    usual: int
    limit: int

    @classmethod
    def read(cls, generation: Any, positions: int | None, limit: int) -> "AnswerLengths":
        """Read a model's own files.

        Args:
            generation: its GenerationConfig.
            positions: how many positions its decoder has; None for any number.
            limit: the configuration's `max_new_tokens_limit`.
        """
        limit = min(limit, positions or limit)
        longest = generation.max_length - 1 if generation.max_length else MOST_ANSWER_TOKENS
        return cls(min(generation.max_new_tokens or longest, limit), limit)

    def of(self, source_tokens: int, *, in_few_classes: bool) -> int:
        """Return the most tokens of an answer where the request does not say; a sentence that never ends costs little.

        Args:
            source_tokens: those of its text, special ones included.
            in_few_classes: rounds up to a power of two, so that texts of like length may run together.
        """
        tokens = ANSWER_FLOOR + ANSWER_FACTOR * source_tokens
        return min(self.usual, 2 ** (tokens - 1).bit_length() if in_few_classes else tokens)
