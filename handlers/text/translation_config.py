"""Settings and options of translation; see handlers.config."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Count, Share
from handlers.text.config import TextConfig

# How a text is divided before it is translated.
Split = Literal["none", "sentences"]
# The first four are torch's too; the others are CTranslate2's names.
Precision = Literal["auto", "fp32", "bf16", "fp16", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16"]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TranslationConfig(TextConfig):
    """Settings of translation.

    Attributes:
        engine: `auto` takes CTranslate2 where the archive holds a converted model, else torch.
        precision: the engine's arithmetic. `auto` is int8 for CTranslate2 on a CPU, and bf16 where the hardware has it
            otherwise. CTranslate2 has names of its own besides, and of all those that the processor can.
        max_tokens: the most padded source tokens of one micro-batch, counted once for every beam.
        src_lang, tgt_lang: the languages, as the model's own codes, where the request does not say. With a detector,
            `src_lang` is that of texts whose language is not certain, and `auto` stands for none.
        detector: a fastText model that identifies languages: the name of a file beside the configuration, or
            {package, file} of one in an installed package; the archive carries it. None for no detector.
        min_score: the least score, 0 to 1, at which the detector's word is taken.
        split: `sentences` translates a text sentence by sentence; `none` as a whole.
        max_sentences: the most sentences of all texts of one request that are translated so.
        max_new_tokens: the most tokens of a translation, where the request does not say; None for what follows from the
            text's own length, and no more than the model's own files say.
        max_new_tokens_limit: the most `max_new_tokens` that a request may ask for.
        num_beams: how many beams the search has, where the request does not say; 1 is greedy.
        num_beams_limit: the most beams that a request may ask for.
    """

    engine: Literal["auto", "torch"] = "auto"
    precision: Precision = "auto"  # type: ignore[assignment]  # what CTranslate2 has beside what all have
    src_lang: str | None = None
    tgt_lang: str | None = None
    detector: str | Mapping[str, str] | None = None
    # lid.176.ftz gives a sentence more, and most of its mistakes, on single words, less.
    min_score: Share = 0.4
    split: Split = "none"
    max_sentences: Count = 256
    max_new_tokens: Count | None = None
    max_new_tokens_limit: Count = 512
    num_beams: Count = 1
    num_beams_limit: Count = 8

    @model_validator(mode="after")
    def _check_detector(self) -> "TranslationConfig":
        if isinstance(self.detector, Mapping) and self.detector.keys() != {"package", "file"}:
            raise ValueError("detector: the name of a file is needed, or package and file")
        if self.detector is None and self.src_lang == "auto":
            raise ValueError("src_lang: auto needs a detector")
        return self

    @model_validator(mode="after")
    def _check_limits(self) -> "TranslationConfig":
        if self.engine == "torch" and self.precision.startswith("int"):
            raise ValueError(f"precision {self.precision} is CTranslate2's; torch has fp32, bf16 and fp16")
        if self.num_beams > self.num_beams_limit:
            raise ValueError(f"num_beams {self.num_beams} is more than num_beams_limit {self.num_beams_limit}")
        if self.max_new_tokens is not None and self.max_new_tokens > self.max_new_tokens_limit:
            raise ValueError(
                f"max_new_tokens {self.max_new_tokens} is more than max_new_tokens_limit {self.max_new_tokens_limit}"
            )
        return self


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TranslationOptions:
    """Options of one text, under transformers' names; None stands for the configuration's setting or the model's own.

    Attributes:
        src_lang, tgt_lang: the languages, as the model's own codes; `src_lang: auto` has it identified.
        min_score: the least score at which the detector's word is taken.
        split: `sentences` or `none`.
        max_new_tokens: the most tokens of the translation.
        num_beams: how many beams the search has; 1 is greedy.
        length_penalty: favours long translations where it is more than 0; it matters to a search with beams only.
        early_stopping: whether to end the search with as many translations as beams; it matters to beams only.
        no_repeat_ngram_size: how many tokens an n-gram has that may occur only once; 0 for no limit.
        repetition_penalty: makes tokens that occurred less likely where it is more than 1.
        stream: whether the answer comes in pieces, as it is generated; in adaptive mode, without beams.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None
    min_score: Share | None = None
    split: Split | None = None
    max_new_tokens: Count | None = None
    num_beams: Count | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] | None = None
    early_stopping: bool | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)] | None = None
    stream: bool | None = None
