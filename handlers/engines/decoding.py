"""Translate the arguments of transformers' generate() into CTranslate2's. Pure.

GenerationConfig of a checkpoint + the archive's vocabulary -> Decoding          what holds for every text
Decoding + arguments of generate()                          -> Decoding.options  what holds for one micro-batch
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Settings of a GenerationConfig that change an answer and that CTranslate2 lacks, and their neutral values.
FOREIGN: Mapping[str, tuple[Any, ...]] = {
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "begin_suppress_tokens": (None, []),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "guidance_scale": (None, 1.0),
    "num_beam_groups": (None, 1),
    "force_words_ids": (None,),
    "constraints": (None,),
}
# A search ends with as many finished answers as beams; with `early_stopping: false`, with twice as many
# (https://arxiv.org/abs/2204.05424), where transformers goes on until no better one is likely.
PATIENCE = 2.0


def foreign_settings(generation: Any) -> list[str]:
    """List the settings of a GenerationConfig that CTranslate2 cannot follow, by name."""
    return [name for name, neutral in FOREIGN.items() if getattr(generation, name, None) not in neutral]


@dataclass(frozen=True, slots=True)
class Decoding:
    """What holds for every text of a model.

    Attributes:
        start: tokens that the decoder is started with beyond what the converted model knows itself; most have none.
        forced_bos: the token that comes first where no language decides; None for any.
        is_eos_forced: whether an answer that reaches its limit ends with the token of ends, which counts as one.
        suppressed: sequences of tokens that are never said.
        no_repeat_ngram_size, repetition_penalty, length_penalty: where a request does not say.
        min_tokens: the fewest tokens of an answer.
    """

    start: tuple[str, ...] = ()
    forced_bos: int | None = None
    is_eos_forced: bool = False
    suppressed: tuple[tuple[str, ...], ...] = ()
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    min_tokens: int = 0

    @classmethod
    def read(cls, generation: Any, vocabulary: Sequence[str], *, has_start: bool) -> "Decoding":
        """Read a model's own files.

        Args:
            generation: its GenerationConfig.
            vocabulary: its tokens by their ids; those that conversion left out are never said in any case.
            has_start: whether the converted model knows the token that its decoder starts with.
        """
        start = generation.decoder_start_token_id
        unsaid = [*(generation.bad_words_ids or []), *([number] for number in generation.suppress_tokens or [])]
        sequences = (tuple(vocabulary[i] for i in ids) for ids in unsaid if max(ids) < len(vocabulary))
        return cls(
            start=() if has_start or start is None else (vocabulary[start],),
            forced_bos=generation.forced_bos_token_id,
            is_eos_forced=generation.forced_eos_token_id is not None,
            suppressed=tuple(sequences),
            no_repeat_ngram_size=generation.no_repeat_ngram_size or 0,
            repetition_penalty=generation.repetition_penalty or 1.0,
            length_penalty=1.0 if generation.length_penalty is None else generation.length_penalty,
            # transformers counts the decoder's first token in min_length.
            min_tokens=max(generation.min_new_tokens or 0, (generation.min_length or 0) - 1),
        )

    def limit(self, max_new_tokens: int) -> int:
        """How many tokens may be generated, so that an answer has no more than `max_new_tokens` with a forced end."""
        return max(1, max_new_tokens - self.is_eos_forced)

    def options(self, arguments: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Return the arguments of CTranslate2's `translate_batch`.

        Args:
            arguments: those of generate(); only those of the search count.
            limit: the most tokens of any answer of the micro-batch.
        """
        beams = arguments.get("num_beams", 1)
        return {
            "beam_size": beams,
            "patience": PATIENCE if beams > 1 and arguments.get("early_stopping") is False else 1.0,
            "length_penalty": arguments.get("length_penalty", self.length_penalty),
            "no_repeat_ngram_size": arguments.get("no_repeat_ngram_size", self.no_repeat_ngram_size),
            "repetition_penalty": arguments.get("repetition_penalty", self.repetition_penalty),
            "suppress_sequences": [list(sequence) for sequence in self.suppressed] or None,
            "min_decoding_length": min(self.min_tokens, limit),
            "max_decoding_length": limit,
            # Texts that are too long are refused before, and never cut here.
            "max_input_length": 0,
            # The end counts in the length that a score is divided by, as in transformers.
            "return_end_token": True,
        }

    def prefix(self, arguments: Mapping[str, Any]) -> list[str | int]:
        """Return what an answer begins with: tokens, and the id of the language's token."""
        first = arguments.get("forced_bos_token_id", self.forced_bos)
        return [*self.start, *([] if first is None else [first])]
