"""Settings and options of the tasks on texts; see handlers.config."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Answers, Count, HandlerConfig, Labels, Share

# The most labels of a language's answer: fastText sets memory aside for all that are asked for, whatever the model has.
LabelCount = Annotated[int, Field(ge=1, le=10_000)]

# The most tokens of an answer to a question.
AnswerTokens = Annotated[int, Field(ge=1, le=128)]

# Token classification groups tokens in these ways, which have the names of transformers' pipeline.
Aggregation = Literal["none", "simple", "first", "average", "max"]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextConfig(HandlerConfig):
    """Settings that every task on a transformer has.

    Attributes:
        max_tokens: the most padded tokens of one micro-batch, its items times its longest.
        max_length: the most tokens of one text, special ones included; None for what the model's own files say.
        max_characters: the most characters of one text; a longer one is refused before it is tokenised.
        truncation: whether to cut a text that is too long, instead of refusing it.
        padding: `longest` pads to the longest text of the micro-batch, rounded up to one of few lengths; `max_length`
            always pads to `max_length`.
        trust_remote_code: whether to run Python that the model's folder brings.
        max_request_characters: the most characters of all texts of one request, before they are tokenised.
    """

    max_tokens: Count | None = 8192
    max_length: Count | None = None
    max_characters: Count = 50_000
    truncation: bool = False
    padding: Literal["longest", "max_length"] = "longest"
    trust_remote_code: bool = False
    max_instances: Count = 256
    max_body_bytes: Count = 2**20
    max_request_characters: Count = 1_000_000
    max_request_tokens: Count | None = 65_536


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenizationConfig(TextConfig):
    """Settings of tokenization; `padding`, `max_length` and `truncation` hold where a request does not say.

    Attributes:
        max_items: the most texts of one call of the tokenizer.
        max_tokens: the most padded tokens of one micro-batch; None for any, since no model runs.
    """

    max_items: Count = 1024
    max_tokens: Count | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenizationOptions:
    """Options of one text; see TokenizationConfig.

    Attributes:
        padding: `longest` pads to the longest text of the request where the answer is tensors, and not at all in JSON;
            `max_length` always pads to `max_length`.
        max_length: the most tokens of the text, special ones included.
        truncation: whether to cut a text that is too long, instead of refusing it.
    """

    padding: Literal["longest", "max_length"]
    max_length: Count
    truncation: bool


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class LanguageIdConfig(HandlerConfig):
    """Settings of language identification.

    Attributes:
        top_k, threshold, label_prefix: the options of that name, where the request does not say.
        max_characters: the most characters of one text.
    """

    top_k: LabelCount = 1
    threshold: Share = 0.0
    label_prefix: bool = False
    max_characters: Count = 50_000
    max_items: Count = 1024
    max_instances: Count = 1024
    max_body_bytes: Count = 2**20


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class LanguageIdOptions:
    """Options of one text; None stands for the configuration's setting of that name.

    Attributes:
        top_k: the most labels of its answer.
        threshold: the least score of a label, 0..1.
        label_prefix: whether labels are as fastText has them, "__label__en", or bare, "en".
    """

    top_k: LabelCount | None = None
    threshold: Share | None = None
    label_prefix: bool | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextClassificationConfig(TextConfig):
    """Settings of text classification.

    Attributes:
        top_k: the most labels of an answer, where the request does not say; None for all.
        function_to_apply: the function that makes scores of logits; `auto` for the one that the model's own
            configuration implies.
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
        aggregation: how tokens become entities, where the request does not say; see handlers.text.entities.
        ignore_labels: labels that are left out of every answer.
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
        max_length: the most tokens of a question and a window of its context together; None for 384, or the model's
            limit if that is less.
        doc_stride: how many tokens neighbouring windows share; None for 128, or half of `max_length` if that is less.
        max_windows: the most windows of one context; `truncation: true` leaves out what comes after them.
        top_k, max_answer_tokens, align_to_words: the options of that name, where the request does not say.
    """

    doc_stride: Annotated[int, Field(ge=0)] | None = None
    max_windows: Count = 32
    top_k: Answers = 1
    max_answer_tokens: AnswerTokens = 15
    align_to_words: bool = True


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class QuestionAnsweringOptions:
    """Options of one question.

    Attributes:
        top_k: the most answers; where it is more than 1, they come as a list.
        max_answer_tokens: the most tokens of an answer.
        align_to_words: whether to widen an answer to whole words, as the tokenizer sees them; this is wrong for
            languages without spaces.
    """

    top_k: Answers
    max_answer_tokens: AnswerTokens
    align_to_words: bool
