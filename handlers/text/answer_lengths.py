"""How many tokens an answer may have: what the model can, its files say, and its source makes likely. Pure."""

from dataclasses import dataclass
from typing import Any

# Tokens of an answer where the model's own files name no limit either; the 20 of transformers' GenerationConfig cuts
# most sentences.
MOST = 256
# Tokens of an answer for each of its text. English into French takes 1.1 in the mean and 1.7 at most, on the 200
# sentences of the tests; a language that a vocabulary cuts finely may take twice as many.
FACTOR = 3
# Tokens that any answer may have: a number or an abbreviation may become a sentence.
FLOOR = 32


@dataclass(frozen=True, slots=True)
class AnswerLengths:
    """The lengths of one model's answers.

    Attributes:
        usual: the most tokens where nobody says, however long the source is.
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
        longest = generation.max_length - 1 if generation.max_length else MOST
        return cls(min(generation.max_new_tokens or longest, limit), limit)

    def of(self, source_tokens: int) -> int:
        """The most tokens of an answer where nobody says, so that a sentence that never ends costs little.

        Args:
            source_tokens: those of its text, special ones included.
        """
        return min(self.usual, FLOOR + FACTOR * source_tokens)


def in_few_classes(tokens: int) -> int:
    """Round a limit up to a power of two, so that texts of like length have the same one and may run together."""
    return int(2 ** (tokens - 1).bit_length()) if tokens > 1 else 1
