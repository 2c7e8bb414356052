"""Text of a request -> checked text -> token ids, padded. Pure.

payload -> read_text -> str          one place for UTF-8, null characters, emptiness and length
lists of ids -> padded -> array      right-padded to one length
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from handlers.errors import EmptyInput, InvalidText, TextTooLong, UnknownShape

Options = TypeVar("Options")

# Lengths that micro-batches are padded to: an engine prepares kernels for every shape it meets, so there are few; the
# steps grow with the length, so that padding stays below an eighth beyond the first ones.
STEPS = ((64, 8), (128, 16), (256, 32), (1024, 64))
LAST_STEP = 128


class Tokens(Protocol):
    """A row of a micro-batch: token ids, and the segment of each."""

    @property
    def ids(self) -> Sequence[int]:
        """Special ones included."""

    @property
    def type_ids(self) -> Sequence[int]:
        """As many as ids."""


@dataclass(frozen=True, slots=True)
class Text(Generic[Options]):
    """One item of a text task.

    Attributes:
        text: as the client sent it, checked.
        options: its own.
        ids: token ids, special ones included; empty until the batch is tokenised.
        type_ids: segment of each token, where the model has segments.
        encoding: the tokenizer's record of its tokens, a tokenizers.Encoding, where answers are places in the text.
    """

    text: str
    options: Options
    ids: Sequence[int] = field(default=())
    type_ids: Sequence[int] = field(default=())
    encoding: Any = None

    def encoded(self, ids: Sequence[int], type_ids: Sequence[int] = (), encoding: Any = None) -> Self:
        """The same item with its tokens."""
        return replace(self, ids=ids, type_ids=type_ids, encoding=encoding)


def read_text(value: Any, name: str, max_characters: int) -> str:
    """Check one text.

    Args:
        value: the raw body, or one field of a JSON object.
        name: of the field, for the message.
        max_characters: more than this is refused.

    Returns:
        The text as it was sent, white space at its ends included: offsets of an answer count from its start.

    Raises:
        UnknownShape: no text at all.
        InvalidText: not UTF-8, a lone surrogate, or a null character.
        EmptyInput: nothing but white space.
        TextTooLong: more than `max_characters`.
    """
    if isinstance(value, bytes | bytearray):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidText(f"{name}: not valid UTF-8 at byte {error.start}.") from None
    if not isinstance(value, str):
        raise UnknownShape(f"{name}: must be a string.")
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


def rounded_length(length: int, limit: int) -> int:
    """The least of the few padded lengths that holds `length` tokens, but no more than the model's `limit`."""
    step = next((step for bound, step in STEPS if length <= bound), LAST_STEP)
    return max(length, min(limit, -(-length // step) * step))


def padded(rows: Sequence[Sequence[int]], length: int, value: int) -> NDArray[np.int64]:
    """Right-pad.

    Args:
        rows: B sequences of at most `length`.
        length: of every row of the result.
        value: to pad with.

    Returns:
        (B, length) int64.
    """
    array = np.full((len(rows), length), value, np.int64)
    for row, ids in zip(array, rows, strict=True):
        row[: len(ids)] = ids
    return array
