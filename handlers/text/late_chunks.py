"""Late chunking: the vectors of a text's chunks, of one run of the whole text, as Jina publishes it. Pure.

spans of characters -> read_chunks -> Chunked -> find_tokens: the tokens of each chunk -> pool_chunks: their means
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import InvalidOption, ItemError, TextTooLong
from handlers.text.documents import find_sentences
from handlers.text.inputs import Options, Text, add_tokens

if TYPE_CHECKING:
    from tokenizers import Encoding


@dataclass(frozen=True, slots=True)
class Chunked(Text[Options]):
    """One item whose chunks have vectors."""

    ahead: int = 0  # characters of the prompt in front
    spans: Sequence[tuple[int, int]] = ()  # in characters of the text behind the prompt
    chunks: Sequence[tuple[int, int]] = ()  # in tokens


def read_chunks(item: Text[Any], prompt: str) -> Chunked[Any]:
    """Check the spans of an item, or find its sentences. A long text is not cut: chunks would be missing."""
    asked, size = item.options, len(item.text)
    spans = find_sentences(item.text) if asked.spans is None else asked.spans
    if not spans or not all(0 <= start < stop <= size for start, stop in spans):
        raise InvalidOption(f"spans: each must be [first, behind the last] of the {size} characters of the text.")
    asked = replace(asked, truncation=False, truncate_prompt_tokens=None)
    return Chunked(prompt + item.text, asked, ahead=len(prompt), spans=spans)


def find_tokens(item: Chunked[Any], encoding: "Encoding", limit: int) -> Chunked[Any] | ItemError:
    """Find the tokens that end in each chunk; those of the prompt and special ones are of no chunk."""
    if (count := len(encoding.ids)) > limit:
        advice = f"late_chunking reads at most {limit} at once; send the text in parts."
        return ItemError.of(TextTooLong(f"text: {count} tokens; {advice}"))
    places = zip(encoding.sequence_ids, encoding.offsets, strict=True)
    inner = [at for at, (place, (start, stop)) in enumerate(places) if place == 0 and start < stop]
    ends = [encoding.offsets[at][1] - 1 - item.ahead for at in inner]
    first, last = (np.searchsorted(ends, [span[side] for span in item.spans]) for side in (0, 1))
    for number in np.flatnonzero(first == last)[:1]:
        return ItemError.of(InvalidOption(f"spans: chunk {number} contains no token of the model."))
    chunks = [(inner[start], inner[stop - 1] + 1) for start, stop in zip(first, last, strict=True)]
    return add_tokens(replace(item, chunks=chunks), encoding.ids, limit, encoding.type_ids)


def pool_chunks(states: NDArray[np.float32], item: Chunked[Any]) -> NDArray[np.float32]:
    """Return the mean of each chunk's states, (C, D), of those of a text, (T, D)."""
    return np.stack([states[start:stop].mean(0) for start, stop in item.chunks])
