"""Settings and options of the tasks on texts; see handlers.config."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Answers, Count, HandlerConfig, Labels, Share

# The most labels of a language's answer: fastText allocates memory for as many, even if the model has fewer.
LabelCount = Annotated[int, Field(ge=1, le=10_000)]

# The most tokens of an answer to a question.
AnswerTokens = Annotated[int, Field(ge=1, le=128)]

# How token classification groups tokens, by the names of transformers' pipeline.
Aggregation = Literal["none", "simple", "first", "average", "max"]

# How a text is divided before it is translated.
Split = Literal["none", "sentences"]
# The first four are torch's too; the others are CTranslate2's names.
_Precision = Literal["auto", "fp32", "bf16", "fp16", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16"]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextConfig(HandlerConfig):
    """Settings that every task on a transformer has.

    Attributes:
        max_batch_tokens: the most padded tokens of one micro-batch, its items times its longest.
        max_length: the most tokens of one text, special ones included; None for what the model's own files say.
        max_characters: the most characters of one text; a longer one is refused before it is tokenised.
        truncation: whether to cut a text that is too long, instead of refusing it.
        padding: `longest` pads to the longest text of the micro-batch, rounded up to one of few lengths; `max_length`
            always pads to `max_length`; `exact` pads nothing: texts of each length run by themselves.
        trust_remote_code: whether to run Python that the model's folder brings.
        max_request_characters: the most characters of all texts of one request, before they are tokenised.
    """

    max_batch_tokens: Count | None = 8192
    max_length: Count | None = None
    max_characters: Count = 50_000
    truncation: bool = False
    padding: Literal["longest", "max_length", "exact"] = "longest"
    trust_remote_code: bool = False
    max_request_items: Count = 256
    max_body_bytes: Count = 2**20
    max_request_characters: Count = 1_000_000
    max_request_tokens: Count | None = 65_536


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class RetrievalConfig(TextConfig):
    """Settings of a model that clients send whole lists; its limits have room for 2048 texts or documents at once."""

    max_request_items: Count = 2048
    max_body_bytes: Count = 2**23
    max_request_characters: Count = 4_000_000
    max_request_tokens: Count | None = 524_288


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SentenceEmbeddingConfig(RetrievalConfig):
    """Settings of sentence embedding.

    Attributes:
        is_matryoshka: whether `dimensions` may be any number up to the model's own, although its files do not say that
            it was trained so.
        token_ids: the vocabulary of texts that come as token ids: `own`, the model's, special ones included. None
            where they are refused.
    """

    is_matryoshka: bool = False
    token_ids: Literal["own"] | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SentenceEmbeddingOptions:
    """Options of one text.

    Attributes:
        dimensions: how many numbers its vector has: the first so many, scaled to unit length. None for all.
        input_type: `query` or `document`, for the prompt that the model has for such a text.
        prompt_name: the name of one of the model's prompts, which is put in front of the text.
    """

    dimensions: Count | None = None
    input_type: Literal["query", "document"] | None = None
    prompt_name: str | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class RerankingConfig(RetrievalConfig):
    """Settings of reranking.

    Attributes:
        truncation: whether to cut a query and a document that are too long together, the longer of both first.
    """

    truncation: bool = True


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class RerankingOptions:
    """Options of one document.

    Attributes:
        max_tokens_per_doc: Cohere's; not less than the model takes, which is where documents are cut.
    """

    max_tokens_per_doc: Count | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenizationConfig(TextConfig):
    """Settings of tokenization; `padding`, `max_length` and `truncation` hold where a request does not say.

    Attributes:
        max_batch_items: the most texts of one call of the tokenizer.
        max_batch_tokens: the most padded tokens of one micro-batch; None for any, since no model runs.
    """

    padding: Literal["longest", "max_length"] = "longest"
    max_batch_items: Count = 1024
    max_batch_tokens: Count | None = None


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
    max_batch_items: Count = 1024
    max_request_items: Count = 1024
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
    """Options of one text; see TextClassificationConfig.

    Attributes:
        text_pair: a second text, which is classified together with the first.
    """

    top_k: Count | None
    text_pair: str | None = None


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


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TranslationConfig(TextConfig):
    """Settings of translation.

    Attributes:
        engine: `auto` takes CTranslate2 where the archive holds a converted model, else torch.
        precision: the engine's arithmetic. `auto` is int8 for CTranslate2 on a CPU, and bf16 where the hardware has it
            otherwise. CTranslate2 has names of its own besides, and of all those that the processor can.
        max_batch_tokens: the most padded source tokens of one micro-batch, counted once for every beam.
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
    precision: _Precision = "auto"  # type: ignore[assignment]  # what CTranslate2 has beside what all have
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
