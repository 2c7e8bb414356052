"""Turn token ids into text as they come, so that the pieces joined are the text of all of them.

ids -> TextPieces.add -> the text that is certain by now ... -> end -> the rest, and the whole text

A tokenizer decodes a list of ids as a whole: it strips spaces off both ends, and makes one character of several tokens
where these are its bytes. So text that may still change is held back. Where a word begins, as SentencePiece has it,
the text before is settled: only the ids from there on are decoded again with each new one.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# What a tokenizer writes for bytes that are no character.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# What SentencePiece writes for a space.
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# A token that is a byte.
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, slots=True)
class Detokenizer:
    """The parts of a tokenizer that are needed.

    Attributes:
        decode: from ids, none of them special, to text.
        tokens: from ids to the tokens as the vocabulary has them.
        special_ids: ids that are not text.
        has_words: whether a token that begins with a space has none where it is decoded alone.
    """

    decode: Callable[[Sequence[int]], str]
    tokens: Callable[[Sequence[int]], Sequence[str]]
    special_ids: frozenset[int]
    has_words: bool

    @classmethod
    def of(cls, tokenizer: Any) -> "Detokenizer":
        """Take the parts of a tokenizer of transformers."""

        def decode(ids: Sequence[int]) -> str:
            text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return text

        special_ids = frozenset(tokenizer.all_special_ids)
        words = (id_ for token, id_ in tokenizer.get_vocab().items() if is_word(token) and id_ not in special_ids)
        word = next(words, None)
        has_words = word is not None and not decode([word])[:1].isspace()
        return cls(decode, tokenizer.convert_ids_to_tokens, special_ids, has_words)


class TextPieces:
    """The text of one item; see `handlers.pipeline.slots.Pieces`."""

    def __init__(self, detokenizer: Detokenizer, result_of: Callable[[str], Any]) -> None:
        """Begin with no text; `result_of` makes the item's result of its whole text."""
        self._detokenizer, self._result_of = detokenizer, result_of
        # Text that is settled, with the space behind it; the ids after it, and their tokens.
        self._settled = ""
        self._ids: list[int] = []
        self._tokens: list[str] = []
        # The number of characters that were returned.
        self._given = 0

    def add(self, tokens: Sequence[int]) -> str:
        """See `Pieces`."""
        new = [token for token in tokens if token not in self._detokenizer.special_ids]
        if not new:
            return ""
        self._ids += new
        self._tokens += self._detokenizer.tokens(new)
        self._settle(len(new))
        whole = len(self._ids)
        while whole and BYTE.fullmatch(self._tokens[whole - 1]):
            whole -= 1
        return self._give(self._text(whole).rstrip(REPLACEMENT))

    def end(self) -> tuple[str, Any]:
        """See `Pieces`."""
        whole = self._text(len(self._ids))
        return self._give(whole), self._result_of(whole)

    def _settle(self, new: int) -> None:
        """Settle what comes before the last word that begins among so many new tokens."""
        if not self._detokenizer.has_words:
            return
        tokens = self._tokens
        for index in range(len(tokens) - 1, max(1, len(tokens) - new) - 1, -1):
            if is_word(tokens[index]) and not _may_change(tokens[index - 1]):
                text = self._detokenizer.decode(self._ids[:index])
                if text and not text.endswith(REPLACEMENT):
                    self._settled += text + " "
                    del self._ids[:index], tokens[:index]
                return

    def _text(self, count: int) -> str:
        """Return all text, as far as so many of the ids that are not settled make it."""
        rest = self._detokenizer.decode(self._ids[:count]) if count else ""
        return self._settled + rest if rest else self._settled[:-1]

    def _give(self, text: str) -> str:
        piece = text[self._given :]
        self._given += len(piece)
        return piece


def is_word(token: str) -> bool:
    """Whether a token is one space and the first letters of a word."""
    return len(token) > 1 and token[0] == SPACE and token[1] != SPACE and not token[1].isspace()


def _may_change(token: str) -> bool:
    """Whether the text of a token may change with the next token: a byte, or spaces at its end."""
    return not token or token[-1] == SPACE or token[-1].isspace() or BYTE.fullmatch(token) is not None
