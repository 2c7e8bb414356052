"""Turn the text of a request into checked text, and token ids into padded arrays. Pure.

payload      -> read_payload, read_text -> str, checked for UTF-8, null characters, emptiness and length
token ids    -> add_tokens              -> the item with its tokens, or the error of a text that has too many
lists of ids -> pad_rows                -> arrays of one length, and the mask of their tokens
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from handlers.engines import pad_array
from handlers.errors import EmptyInput, InvalidBody, InvalidText, ItemError, TextTooLong
from handlers.protocol.requests import Payload

Options = TypeVar("Options")
Side = Literal["left", "right"]

# Padded lengths of micro-batches, in tokens: up to the first number, a length is rounded up to a multiple of the
# second. An engine prepares kernels for every new shape (OpenVINO needs 4 to 6 ms), so there are few: 20 up to 512.
_STEPS = ((64, 8), (128, 16), (256, 32), (1024, 64))
_LAST_STEP = 128  # the multiple of longer texts, in tokens

# Tokens of an answer if the model's own files contain no limit; the 20 of transformers' GenerationConfig cut most
# sentences.
MOST_ANSWER_TOKENS = 256
# Tokens of an answer for each token of its text. English into French needs 1.1 in the mean and 1.7 at most, on the 200
# sentences of the tests; other vocabularies may need twice as many.
ANSWER_FACTOR = 3
ANSWER_FLOOR = 32  # tokens of an answer beside these, since a number may become a sentence


class Tokens(Protocol):
    """A row of a micro-batch: token ids, and the segment of each."""

    @property
    def ids(self) -> Sequence[int]:
        """The token ids, special ones included."""

    @property
    def type_ids(self) -> Sequence[int]:
        """The segment of each token."""


class _Encodings(dict[str, Any]):
    encodings: Sequence[Any]


class FastTokenizer(SimpleNamespace):
    """Encodes like a fast tokenizer of transformers, with the arguments of handlers; any other is a TypeError."""

    def __call__(self, texts: Any, pairs: Any = None, **options: bool) -> _Encodings:
        known = options.items() <= {"return_attention_mask": False, "return_token_type_ids": True}.items()
        if not known or isinstance(texts, str):
            raise TypeError(f"a prepared tokenizer needs a list of texts; not {options}")
        found = self.backend_tokenizer.encode_batch(texts if pairs is None else [*zip(texts, pairs, strict=True)])
        encodings = _Encodings(input_ids=[each.ids for each in found], token_type_ids=[each.type_ids for each in found])
        encodings.encodings = found
        return encodings

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def convert_tokens_to_string(self, tokens: list[str]) -> Any:
        decoder = self.backend_tokenizer.decoder
        return decoder.decode(tokens) if decoder is not None else " ".join(tokens)


@dataclass(frozen=True, slots=True)
class Text(Generic[Options]):
    text: str  # as the client sent it, checked
    options: Options
    ids: Sequence[int] = field(default=())  # tokens, special ones included; none before `prepare`
    type_ids: Sequence[int] = field(default=())  # the segment of each token, if the model has segments
    encoding: Any = None  # tokenizers.Encoding, if answers are places in the text
    pair: str | None = None  # a second text, if the model accepts two


Item = TypeVar("Item", bound=Text[Any])


def read_payload(payload: Payload, most: int, **options: Any) -> str:
    """Read the text of a payload that is one, or whose field `text` is one; see `read_text`."""
    value = payload.value["text"] if isinstance(payload.value, Mapping) else payload.value
    return read_text(value, "text", most, **options)


def read_text(
    value: object,
    name: str,
    max_characters: int,
    *,
    accepts_blank: bool = False,
    cut: Side | None = None,
    advice: str = "",
) -> str:
    """Check one text, returned with white space at its ends; a longer one is cut on a side or an error."""
    if isinstance(value, bytes | bytearray):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidText(f"{name}: not valid UTF-8 at byte {error.start}.") from None
    if not isinstance(value, str):
        raise InvalidBody(f"{name}: must be a string.")
    if len(value) > max_characters and cut is None:
        raise TextTooLong(f"{name}: {len(value)} characters; max_characters is {max_characters}.{advice}")
    text: str = value[-max_characters:] if cut == "left" else value[:max_characters]
    if not (text if accepts_blank else text.strip()):
        raise EmptyInput(f"{name}: empty.")
    if "\0" in text:
        raise InvalidText(f"{name}: has a null character at position {text.index(chr(0))}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidText(f"{name}: has a lone surrogate at position {error.start}.") from None
    return text


def add_tokens(item: Item, ids: Sequence[int], max_length: int, type_ids: Sequence[int] = ()) -> Item | ItemError:
    """Copy an item with its tokens; or return its error if there are no tokens, or more than `max_length`."""
    if not ids:
        return ItemError.of(EmptyInput("text: contains no token of the model."))
    if len(ids) > max_length:
        return ItemError.of(TextTooLong(f"text: {len(ids)} tokens; max_length is {max_length}."))
    return replace(item, ids=ids, type_ids=type_ids)


def round_length(length: int, limit: int) -> int:
    """Return the least padded length for `length` tokens, but no more than the model's `limit`."""
    step = next((step for bound, step in _STEPS if length <= bound), _LAST_STEP)
    return max(length, min(limit, -(-length // step) * step))


def pad_rows(
    rows: Sequence[Sequence[int]], length: int, pad_id: int, *, is_left: bool = False
) -> dict[str, NDArray[np.int64]]:
    """Pad B rows on either side to `input_ids` and `attention_mask`, (B, length) int64; 0 masks padding."""
    mask = pad_array([[1] * len(row) for row in rows], length, 0, is_left=is_left)
    return {"input_ids": pad_array(rows, length, pad_id, is_left=is_left), "attention_mask": mask}


@dataclass(frozen=True, slots=True)
class AnswerLengths:
    """Limits on the tokens of a model's answers."""

    usual: int  # tokens, however long the source is, if the request does not set a limit
    limit: int  # the most tokens that a request may ask for

    @classmethod
    def read(cls, generation: Any, positions: int | None, limit: int) -> "AnswerLengths":
        """Read a model's GenerationConfig; its decoder has `positions`, None for any number."""
        limit = min(limit, positions or limit)
        longest = generation.max_length - 1 if generation.max_length else MOST_ANSWER_TOKENS
        return cls(min(generation.max_new_tokens or longest, limit), limit)

    def of(self, source_tokens: int, *, in_few_classes: bool) -> int:
        """Return the most tokens of an answer if the request sets no limit, so that endless sentences cost little."""
        tokens = ANSWER_FLOOR + ANSWER_FACTOR * source_tokens
        return min(self.usual, 2 ** (tokens - 1).bit_length() if in_few_classes else tokens)
