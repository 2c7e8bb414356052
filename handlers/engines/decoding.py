"""Translate the arguments of transformers' generate() into CTranslate2's. Pure.

GenerationConfig of a checkpoint + the archive's vocabulary -> Decoding          for every text of a model
Decoding + arguments of generate()                          -> Decoding.options  for one micro-batch
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Settings of a GenerationConfig that this module translates.
_FOLLOWED = (
    "bad_words_ids suppress_tokens decoder_start_token_id forced_bos_token_id forced_eos_token_id eos_token_id "
    "bos_token_id pad_token_id no_repeat_ngram_size repetition_penalty length_penalty min_length min_new_tokens "
    "max_length max_new_tokens num_beams early_stopping renormalize_logits"
)
# Settings that cannot change an answer without sampling.
_WITHOUT_EFFECT = (
    "transformers_version do_sample temperature top_k top_p top_h min_p typical_p epsilon_cutoff eta_cutoff "
    "num_return_sequences use_cache low_memory return_dict_in_generate remove_invalid_values output_attentions "
    "output_hidden_states output_logits output_scores cache_implementation cache_config max_cache_len compile_config "
    "disable_compile prefill_chunk_size text_decoder_lang_to_code_id"
)
HARMLESS = frozenset([*_FOLLOWED.split(), *_WITHOUT_EFFECT.split()])
# Neutral values that are not 0, false or empty.
NEUTRAL: Mapping[str, float] = {"encoder_repetition_penalty": 1.0, "guidance_scale": 1.0, "num_beam_groups": 1}
# A search ends when it has as many finished answers as beams. With `early_stopping: false`, transformers' default, it
# ends with twice as many (https://arxiv.org/abs/2204.05424); transformers stops when a better one is unlikely.
PATIENCE = 2.0


def foreign_settings(generation: Any) -> list[str]:
    """List the settings of a GenerationConfig that CTranslate2 cannot follow, by name."""
    settings = {name: value for name, value in generation.to_diff_dict().items() if not name.startswith("_")}
    found = [name for name, value in settings.items() if name not in HARMLESS and value and value != NEUTRAL.get(name)]
    # Not several end tokens, and not transformers' heuristic of stopping.
    kinds = {"eos_token_id": int, "early_stopping": bool}
    return found + [name for name, kind in kinds.items() if not isinstance(settings.get(name, False), kind)]


def starts_with_end(generation: object) -> bool:
    """Whether answers begin with the end token, which only generate() counts as one that has occurred."""
    start, end = (getattr(generation, name, None) for name in ("decoder_start_token_id", "eos_token_id"))
    return start is not None and start == end


def counted_settings(settings: object) -> list[str]:
    """List the options or settings that depend on the first token of an answer, by name."""
    is_penalised = getattr(settings, "repetition_penalty", None) not in (None, 1)
    is_banned = getattr(settings, "no_repeat_ngram_size", None) == 1
    return [*(["repetition_penalty"] if is_penalised else []), *(["no_repeat_ngram_size"] if is_banned else [])]


@dataclass(frozen=True, slots=True)
class Decoding:
    """The rules of decoding for every text of a model; a request may set the four of generate()'s names."""

    start: int | None = None  # the decoder's first token, if the converted model does not name one
    forced_bos: int | None = None  # the answer's first token, if no language decides; None for any
    is_eos_forced: bool = False  # whether an answer that reaches its limit ends with the end token, which counts
    suppressed: tuple[tuple[str, ...], ...] = ()  # sequences of tokens that no answer contains
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    early_stopping: bool = False
    min_tokens: int = 0

    @classmethod
    def read(cls, generation: Any, vocabulary: Sequence[str], *, has_start: bool) -> "Decoding":
        """Read a model's GenerationConfig, with its tokens by their ids.

        `has_start` is whether the converted model names its decoder's first token. Answers never contain tokens that
        conversion omitted.
        """
        unsaid = [*(generation.bad_words_ids or []), *([number] for number in generation.suppress_tokens or [])]
        sequences = (tuple(vocabulary[i] for i in ids) for ids in unsaid if max(ids) < len(vocabulary))
        return cls(
            start=None if has_start else generation.decoder_start_token_id,
            forced_bos=generation.forced_bos_token_id,
            is_eos_forced=generation.forced_eos_token_id is not None,
            suppressed=tuple(sequences),
            no_repeat_ngram_size=generation.no_repeat_ngram_size or 0,
            repetition_penalty=generation.repetition_penalty or 1.0,
            length_penalty=1.0 if generation.length_penalty is None else generation.length_penalty,
            early_stopping=bool(generation.early_stopping),
            # transformers counts the decoder's first token in min_length.
            min_tokens=max(generation.min_new_tokens or 0, (generation.min_length or 0) - 1),
        )

    def limit(self, max_new_tokens: int) -> int:
        """Return the most tokens to generate, so that an answer with a forced end has at most `max_new_tokens`."""
        return max(1, max_new_tokens - self.is_eos_forced)

    def options(self, arguments: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Return the arguments of CTranslate2's `translate_batch`, for answers of at most `limit` tokens."""
        beams, ends_early = arguments.get("num_beams", 1), arguments.get("early_stopping", self.early_stopping)
        return {
            "beam_size": beams,
            "patience": PATIENCE if beams > 1 and not ends_early else 1.0,
            "length_penalty": arguments.get("length_penalty", self.length_penalty),
            "no_repeat_ngram_size": arguments.get("no_repeat_ngram_size", self.no_repeat_ngram_size),
            "repetition_penalty": arguments.get("repetition_penalty", self.repetition_penalty),
            "suppress_sequences": [list(sequence) for sequence in self.suppressed] or None,
            "min_decoding_length": min(self.min_tokens, limit),
            "max_decoding_length": limit,
            "max_input_length": 0,  # texts that are too long have been rejected before, and are never cut here
            # The end token counts in the length that a score is divided by, as in transformers.
            "return_end_token": True,
        }

    def prefix(self, arguments: Mapping[str, Any]) -> list[int]:
        """Return the ids that an answer begins with: the decoder's first token, and the language's token."""
        start = arguments.get("decoder_start_token_id", self.start)
        first = arguments.get("forced_bos_token_id", self.forced_bos)
        return [each for each in (start, first) if each is not None]
