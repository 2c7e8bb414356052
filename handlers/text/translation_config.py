"""Settings and options of translation; see handlers.config."""

from typing import Annotated

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Count
from handlers.text.config import TextConfig


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TranslationConfig(TextConfig):
    """Settings of translation.

    Attributes:
        engine: `torch`, which `auto` takes on every device; `openvino` is refused.
        max_tokens: the most padded source tokens of one generate(), counted once for every beam.
        src_lang, tgt_lang: the languages, as the model's own codes, where the request does not say.
        max_new_tokens: the most tokens of a translation, where the request does not say; None for what the model's own
            files say.
        max_new_tokens_limit: the most `max_new_tokens` that a request may ask for.
        num_beams: how many beams the search has, where the request does not say; 1 is greedy.
        num_beams_limit: the most beams that a request may ask for.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None
    max_new_tokens: Count | None = None
    max_new_tokens_limit: Count = 512
    num_beams: Count = 1
    num_beams_limit: Count = 8

    @model_validator(mode="after")
    def _check_limits(self) -> "TranslationConfig":
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
        src_lang, tgt_lang: the languages, as the model's own codes.
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
    max_new_tokens: Count | None = None
    num_beams: Count | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] | None = None
    early_stopping: bool | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)] | None = None
    stream: bool | None = None
