"""Settings of an archive and options of a request, as frozen dataclasses.

`handler:` of model-config.yaml -> parse(cls, ...)         -> settings, or one InvalidConfig that lists every problem
fields of a request             -> parse_options(cls, ...) -> options, or one UnknownOption, likewise
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from handlers.errors import InvalidConfig, UnknownOption

T = TypeVar("T")

# Strict: YAML already has types, and `max_items: true` is a mistake, not a one.
SETTINGS = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=1)]
Answers = Annotated[int, Field(ge=1, le=100)]
Threads = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=1, le=4096)]
# How token-classification groups tokens, under the names of transformers' pipeline.
Aggregation = Literal["none", "simple", "first", "average", "max"]
# A YAML list is a list; only its length and values are checked.
Labels = Annotated[tuple[str, ...], Strict(False)]
Channels = Annotated[tuple[float, float, float], Strict(False)]

# Statistics of the ImageNet training set, per channel, as torchvision's ImageClassification transform has them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class HandlerConfig:
    """Settings that every task has.

    Attributes:
        engine: `auto` takes torch on a GPU and OpenVINO on a CPU.
        precision: arithmetic of the engine; `auto` takes bf16 where the hardware has it.
        threads: processor threads of the engine; 0 for every core this process may use.
        decode_threads: threads that decode a batch's items; 0 for every core.
        max_items: most items of one forward pass.
        max_tokens: most padded tokens of one forward pass; None where nothing is padded.
        max_instances: most items of one request.
        max_body_bytes: most bytes of one request's body (TorchServe's own `max_request_size` stands before it).
    """

    engine: Literal["auto", "openvino", "torch"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    threads: Threads = 0
    decode_threads: Threads = 0
    max_items: Count = 64
    max_tokens: Count | None = None
    max_instances: Count = 64
    max_body_bytes: Count = 16 * 2**20


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageClassificationConfig(HandlerConfig):
    """Settings of image classification. The defaults of the geometry are torchvision's IMAGENET1K_V1.

    Attributes:
        arch: name of a torchvision classifier, as `torchvision.models.get_model` takes it.
        resize_size: the shorter side is resized to this, in pixels.
        crop_size: then the centre square of this side is taken, in pixels.
        mean, std: per channel, of values in 0..1.
        top_k: labels of an answer, where the request does not say.
        max_pixels: most pixels of an image, refused from its header before it is decoded.
        scaled_decode: let libjpeg decode large JPEGs at 1/2, 1/4 or 1/8, never below twice `resize_size`.
    """

    arch: str
    resize_size: Side = 256
    crop_size: Side = 224
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    top_k: Count = 5
    max_pixels: Count = 50_000_000
    scaled_decode: bool = True

    @model_validator(mode="after")
    def _check_geometry(self) -> "ImageClassificationConfig":
        if self.crop_size > self.resize_size:
            raise ValueError(f"crop_size {self.crop_size} is more than resize_size {self.resize_size}")
        if min(self.std) <= 0:
            raise ValueError("every value of std must be more than 0")
        return self


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextConfig(HandlerConfig):
    """Settings that every task on a transformer has.

    Attributes:
        max_tokens: most padded tokens of one forward pass, items times the longest.
        max_length: most tokens of one text, special ones included; None for what the model's own files say.
        max_characters: most characters of one text, refused before it is tokenised.
        truncation: cut a text that is too long, instead of refusing it.
        padding: `longest` of the micro-batch, rounded up to one of few sizes, or always `max_length`.
        trust_remote_code: run Python that the model's folder brings.
    """

    max_tokens: Count | None = 8192
    max_length: Count | None = None
    max_characters: Count = 50_000
    truncation: bool = False
    padding: Literal["longest", "max_length"] = "longest"
    trust_remote_code: bool = False
    max_instances: Count = 256
    max_body_bytes: Count = 2**20


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class LanguageIdConfig(HandlerConfig):
    """Settings of language identification.

    Attributes:
        top_k, threshold, label_prefix: of LanguageIdOptions, where the request does not say.
        max_characters: most characters of one text.
    """

    top_k: Count = 1
    threshold: Share = 0.0
    label_prefix: bool = False
    max_characters: Count = 50_000
    max_items: Count = 1024
    max_instances: Count = 1024
    max_body_bytes: Count = 2**20


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class LanguageIdOptions:
    """Options of one text; None for the configuration's.

    Attributes:
        top_k: most labels of its answer.
        threshold: least score of a label.
        label_prefix: whether labels are as fastText has them, "__label__en", or bare, "en".
    """

    top_k: Count | None = None
    threshold: Share | None = None
    label_prefix: bool | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextClassificationConfig(TextConfig):
    """Settings of text classification.

    Attributes:
        top_k: labels of an answer, where the request does not say; None for all.
        function_to_apply: what makes scores of logits; `auto` for what the model's own configuration says.
    """

    top_k: Count | None = 1
    function_to_apply: Literal["auto", "sigmoid", "softmax", "none"] = "auto"


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextClassificationOptions:
    """Options of one text; see TextClassificationConfig."""

    top_k: Count | None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenClassificationConfig(TextConfig):
    """Settings of token classification.

    Attributes:
        aggregation: how tokens become entities, where the request does not say.
        ignore_labels: labels that no answer has.
    """

    aggregation: Aggregation = "simple"
    ignore_labels: Labels = ("O",)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenClassificationOptions:
    """Options of one text; see TokenClassificationConfig."""

    aggregation: Aggregation


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class QuestionAnsweringConfig(TextConfig):
    """Settings of question answering; the defaults are those of transformers' pipeline of that name.

    Attributes:
        max_length: most tokens of a question and a window of its context; None for 384, or the model's limit if less.
        doc_stride: tokens that neighbouring windows share; None for 128, or half of `max_length` if that is less.
        max_windows: most windows of one context; `truncation: true` leaves out what comes after them.
        top_k, max_answer_tokens, align_to_words: of QuestionAnsweringOptions, where the request does not say.
    """

    doc_stride: Annotated[int, Field(ge=0)] | None = None
    max_windows: Count = 32
    top_k: Answers = 1
    max_answer_tokens: Count = 15
    align_to_words: bool = True


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class QuestionAnsweringOptions:
    """Options of one question.

    Attributes:
        top_k: most answers; more than one come as a list.
        max_answer_tokens: most tokens of an answer.
        align_to_words: widen an answer to whole words, as the tokenizer sees them; wrong for languages without spaces.
    """

    top_k: Answers
    max_answer_tokens: Count
    align_to_words: bool


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


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class NoOptions:
    """Options of a task that has none."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageClassificationOptions:
    """Options of one image.

    Attributes:
        top_k: labels of its answer; None for the configuration's.
    """

    top_k: Count | None = None


def parse(cls: Callable[..., T], values: Any) -> T:
    """Build a configuration from YAML's values.

    Args:
        cls: a settings class of this module.
        values: the mapping under `handler:`; None counts as empty.

    Raises:
        InvalidConfig: lists every unknown key, missing key, wrong type and value out of range.
    """
    values = {} if values is None else values
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidConfig("handler: a mapping of names to values is needed")
    try:
        return cls(**values)
    except ValidationError as error:
        raise InvalidConfig(f"handler: {_problems(error)}") from None


def parse_options(cls: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Build one item's options.

    Args:
        cls: an options class of this module.
        values: what the client sent beside its input.

    Raises:
        UnknownOption: lists every problem, and the options there are.
    """
    try:
        return cls(**values)
    except ValidationError as error:
        known = ", ".join(signature(cls).parameters)
        raise UnknownOption(f"Options: {_problems(error)}. Known options: {known or 'none'}.") from None


def _problems(error: ValidationError) -> str:
    """Field and reason of each, never the value that was sent."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'all'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    )
