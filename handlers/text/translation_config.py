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
        engine: torch, which `auto` takes on every device; OpenVINO is refused.
        max_tokens: most padded source tokens of one generate(), those of every beam counted.
        src_lang, tgt_lang: codes of the model's languages, where the request does not say.
        max_new_tokens: most tokens of a translation, where the request does not say; None for what the model's own
            files say.
        max_new_tokens_limit: most that a request may ask for.
        num_beams: of the search, where the request does not say; 1 is greedy.
        num_beams_limit: most that a request may ask for.
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
    """Options of one text, under transformers' names; None for the configuration's, or the model's own.

    Attributes:
        src_lang, tgt_lang: codes of the model's languages.
        max_new_tokens: most tokens of the translation.
        num_beams: of the search; 1 is greedy.
        length_penalty: of a search with beams: more than 0 favours long translations.
        early_stopping: of a search with beams: end it with as many translations as beams.
        no_repeat_ngram_size: n-grams of that many tokens occur once; 0 for no limit.
        repetition_penalty: more than 1 makes tokens that occurred less likely.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None
    max_new_tokens: Count | None = None
    num_beams: Count | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] | None = None
    early_stopping: bool | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)] | None = None
