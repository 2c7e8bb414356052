"""Fit the tokens of a text, or of two, into a model's limit: overlapping windows, or a cut. Pure.

encoding -> split_encoding -> windows of one text, in its order
encoding -> cut_encoding   -> the tokens that transformers' `longest_first` leaves; cut_window for one text
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from handlers.errors import InvalidOption
from handlers.text.inputs import Options, Side, Text

if TYPE_CHECKING:
    from tokenizers import Encoding

# Tokens of a text that neighbouring windows share: doc_stride of transformers' question-answering pipeline.
SHARED_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a text, beside all of the other one: a row of a micro-batch."""

    ids: Sequence[int]  # special tokens included
    type_ids: Sequence[int]  # the segment of each token
    offset: int  # index of its first token of the text, among the text's tokens
    first: int  # index of that token in `ids`
    tokens: int  # tokens of the text


@dataclass(frozen=True, slots=True)
class Windowed(Text[Options]):
    """One item whose text runs in windows."""

    windows: Sequence[Window] = field(default=())  # none until the batch is tokenised


def split_encoding(encoding: "Encoding", sequence: int, max_length: int, stride: int, most: int) -> list[Window]:
    """Split one text of an encoding into as few windows as cover it; none if no token of it fits, or it has none.

    At most one more than `most` are made: a step of one token would make as many as the text has tokens.
    """
    ids, type_ids = encoding.ids, encoding.type_ids
    indices = [index for index, each in enumerate(encoding.sequence_ids) if each == sequence]
    if not indices:
        return []
    text = range(indices[0], indices[-1] + 1)
    room = max_length - (len(ids) - len(text))
    fits = len(text) <= room
    if not fits and room <= stride:
        return []
    windows = []
    for start in [text.start] if fits else range(text.start, text.stop - stride, room - stride)[: most + 1]:
        stop = min(start + room, text.stop)
        windows.append(
            Window(
                [*ids[: text.start], *ids[start:stop], *ids[text.stop :]],
                [*type_ids[: text.start], *type_ids[start:stop], *type_ids[text.stop :]],
                start - text.start,
                text.start,
                stop - start,
            )
        )
    return windows


def split_behind(encoding: "Encoding", characters: int, max_length: int, stride: int) -> list[Window]:
    """Split a text into windows that all begin with its first `characters`, a prompt; none if no other token fits."""
    ids, type_ids, spans = encoding.ids, encoding.type_ids, encoding.offsets
    text = [at for at, place in enumerate(encoding.sequence_ids) if place == 0 and spans[at][1] > characters]
    if not text:
        return []
    start, stop, last = text[0], text[-1] + 1, len(ids)
    room = max_length - start - (last - stop)
    if room <= stride:
        return []
    windows = []
    for first in range(start, max(start + 1, stop - stride), room - stride):
        end = min(first + room, stop)
        kept = [*range(start), *range(first, end), *range(stop, last)]
        row, kinds = ([values[at] for at in kept] for values in (ids, type_ids))
        windows.append(Window(row, kinds, first - start, start, end - first))
    return windows


def cut_encoding(encoding: "Encoding", limit: int, side: Side) -> list[int]:
    """Return the indices of the tokens that stay if `side` of the longer text is cut off first."""
    places: Sequence[int | None] = encoding.sequence_ids
    sizes = [places.count(0), places.count(1)]
    room = limit - places.count(None)
    if room < 1:
        raise InvalidOption(f"truncation: {limit} tokens have no room for text; {places.count(None)} are special ones.")
    # As transformers' tokenizers: the shorter text stays whole if that leaves the longer one as long.
    low = min(sizes)
    high = low if low > room else max(low, room - low)
    low, high = (low, high) if low + high <= room else (room // 2, room - room // 2)
    left, kept = [low, high] if sizes[0] <= sizes[1] else [high, low], []
    for index in range(len(places)) if side == "right" else reversed(range(len(places))):
        place = places[index]
        if place is None or left[place] > 0:
            kept.append(index)
            if place is not None:
                left[place] -= 1
    return sorted(kept)


def cut_tokens(tokenizer: Any, texts: tuple[str, str | None], encoding: Any, limit: int, side: Side) -> Any:
    """Return the token ids and the segments of a text, or of two, that `cut_encoding` leaves."""
    if encoding is not None:
        kept = cut_encoding(encoding, limit, side)
        return [[values[index] for index in kept] for values in (encoding.ids, encoding.type_ids)]
    # Of a tokenizer in Python; the arguments are no state of it.
    lists = [None if each is None else [each] for each in texts]
    cut = tokenizer(*lists, truncation=True, max_length=limit, return_token_type_ids=True)
    return cut["input_ids"][0], cut["token_type_ids"][0]


def cut_window(encoding: "Encoding", limit: int, side: Side) -> Window:
    """Cut a text off; see `cut_encoding`."""
    kept, places = cut_encoding(encoding, limit, side), encoding.sequence_ids
    inner = [index for index in kept if places[index] == 0]
    ids, type_ids = ([values[index] for index in kept] for values in (encoding.ids, encoding.type_ids))
    return Window(ids, type_ids, inner[0] - places.index(0), kept.index(inner[0]), len(inner))
