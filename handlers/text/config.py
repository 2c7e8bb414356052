"""Settings and options of the tasks on texts; see handlers.config."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict, model_validator
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Answers, Count, HandlerConfig, Labels, Share, doc

# The most labels of a language's answer: fastText allocates memory for as many, even if the model has fewer.
LabelCount = Annotated[int, Field(ge=1, le=10_000)]

AnswerTokens = Annotated[int, Field(ge=1, le=128)]  # the most tokens of an answer to a question

Stride = Annotated[int, Field(ge=0)]

# The least and the greatest value of each dimension. YAML has lists and no tuples.
_Bound = float | Annotated[tuple[float, ...], Strict(False)]
Bounds = Annotated[tuple[_Bound, _Bound], Strict(False)]

Spans = Annotated[tuple[Annotated[tuple[int, int], Strict(False)], ...], Strict(False)]

# How token classification groups tokens, by the names of transformers' pipeline.
Aggregation = Literal["none", "simple", "first", "average", "max"]

Function = Literal["auto", "sigmoid", "softmax", "none"]  # from logits to scores
Split = Literal["none", "sentences"]  # how a text is divided before it is translated
# The first four are torch's too; the others are CTranslate2's names.
_Precision = Literal["auto", "fp32", "bf16", "fp16", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16"]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextConfig(HandlerConfig):
    """Settings that every task on a transformer has."""

    max_batch_tokens: Count | None = doc(
        8192, "Maximum padded tokens per micro-batch: its items times the length of its longest."
    )
    max_length: Count | None = doc(
        None, "Maximum tokens per text, including special tokens; None for the limit in the model's files."
    )
    max_characters: Count = doc(
        50_000, "Maximum characters per text; a longer text is rejected before it is tokenised."
    )
    truncation: bool = doc(False, "Whether to cut a text that is too long, instead of rejecting it.")
    padding: Literal["longest", "max_length", "exact"] = doc(
        "longest",
        "`longest` pads to the longest text of the micro-batch, rounded up to one of few lengths; `max_length` always "
        "pads to `max_length`; `exact` pads nothing, so texts of different lengths never share a micro-batch.",
    )
    trust_remote_code: bool = doc(False, "Whether to run Python code from the model's folder.")
    max_request_items: Count = 256
    max_body_bytes: Count = 2**20
    max_request_characters: Count = doc(
        1_000_000, "Maximum characters of all texts of one request, before they are tokenised."
    )
    max_request_tokens: Count | None = 65_536


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TruncationOptions:
    """Options of a text that may be cut."""

    truncation: bool = doc(False, "Whether to cut a long text.")
    truncate_prompt_tokens: Count | Literal[-1] | None = doc(None, "Tokens to keep; -1 for `max_length`.")
    truncation_side: Literal["left", "right"] | None = doc(None, "The side to cut off; null for the tokenizer's.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class RetrievalConfig(TextConfig):
    """Settings of a model that clients send whole lists; its limits have room for 2048 texts or documents at once."""

    max_request_items: Count = 2048
    max_body_bytes: Count = 2**23
    max_request_characters: Count = 4_000_000
    max_request_tokens: Count | None = 524_288


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class EmbeddingConfig(RetrievalConfig):
    """Settings of a model whose answers are vectors."""

    is_matryoshka: bool = doc(
        False, "Whether `dimensions` is allowed although the model's files do not declare Matryoshka training."
    )
    int8_ranges: Bounds | None = doc(
        None, "Minimum and maximum of int8 and uint8, each a number or a list by dimension; values beyond are clipped."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SentenceEmbeddingConfig(EmbeddingConfig):
    """Settings of sentence embedding."""

    token_ids: Literal["own"] | None = doc(
        None,
        "The vocabulary of texts that arrive as token ids: `own` for the model's, special tokens included; "
        "None to reject token ids.",
    )
    long_text: Literal["mean"] | None = doc(
        None,
        "`mean` runs a text that is too long in windows; its vector is the mean of theirs, weighted by their tokens. "
        "None to reject it.",
    )
    max_windows: Count = doc(32, "Maximum windows of a long text.")
    has_late_chunking: bool = doc(False, "Whether requests may have `late_chunking`.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SentenceEmbeddingOptions(TruncationOptions):
    """Options of one text."""

    dimensions: Count | None = doc(
        None, "Number of leading values of the vector to return, scaled to unit length; null for all."
    )
    input_type: Literal["query", "document", "classification", "clustering"] | None = doc(
        None, "The role of the text: selects the model's prompt."
    )
    prompt_name: str | None = doc(None, "The name of one of the model's prompts, which is put in front of the text.")
    normalize: bool | None = doc(None, "Whether to scale the vector to unit length; null for the model's own choice.")
    late_chunking: bool = doc(False, "Whether to return a vector for each chunk, of one run of the text.")
    spans: Spans | None = doc(None, "Each chunk's first character, and the one behind its last; null for sentences.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class RerankingConfig(RetrievalConfig):
    """Settings of reranking."""

    truncation: bool = doc(
        True, "Whether to cut a query and a document that are too long together; the longer one is cut first."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class RerankingOptions(TruncationOptions):
    """Options of one document."""

    max_tokens_per_doc: Count | None = doc(
        None, "Cohere's option; at least the model's limit, since documents are cut at that limit only."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenizationConfig(TextConfig):
    """Settings of tokenization; `padding`, `max_length` and `truncation` are the defaults of a request."""

    padding: Literal["longest", "max_length"] = "longest"
    max_batch_items: Count = doc(1024, "Maximum texts per call of the tokenizer.")
    max_batch_tokens: Count | None = doc(
        None, "Maximum padded tokens per micro-batch; None for any number, since no model runs."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenizationOptions:
    """Options of one text; see TokenizationConfig."""

    padding: Literal["longest", "max_length"] = Field(
        description="`longest` pads tensors to the longest text of the request and does not pad JSON; `max_length` "
        "always pads to `max_length`."
    )
    max_length: Count = Field(description="Maximum tokens of the text, including special tokens.")
    truncation: bool = Field(description="Whether to cut a text that is too long, instead of rejecting it.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class LanguageIdConfig(HandlerConfig):
    """Settings of language identification; `top_k`, `threshold` and `label_prefix` are the defaults of a request."""

    top_k: LabelCount = 1
    threshold: Share = 0.0
    label_prefix: bool = False
    max_characters: Count = doc(50_000, "Maximum characters per text.")
    max_batch_items: Count = 1024
    max_request_items: Count = 1024
    max_body_bytes: Count = 2**20


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class LanguageIdOptions:
    """Options of one text; None selects the setting of that name."""

    top_k: LabelCount | None = doc(None, "Maximum labels in the response.")
    threshold: Share | None = doc(None, "Minimum score of a label, 0 to 1.")
    label_prefix: bool | None = doc(None, 'Whether labels have fastText\'s prefix, "__label__en", or are bare, "en".')


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextClassificationConfig(TextConfig):
    """Settings of text classification; `top_k` is the default of a request."""

    top_k: Count | None = 1
    function_to_apply: Function = doc(
        "auto", "The function that turns logits into scores; `auto` for the one that the model's configuration implies."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextClassificationOptions(TruncationOptions):
    """Options of one text; see TextClassificationConfig."""

    top_k: Count | None = Field(description="Maximum labels in the response; null for all.")
    function_to_apply: Function = Field(description="The function that turns logits into scores.")
    text_pair: str | None = doc(None, "A second text, which is classified together with the first.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class WindowsConfig(TextConfig):
    """Settings of a task that runs a long text in windows."""

    doc_stride: Stride | None = doc(
        None, "Tokens that neighbouring windows share; None for 128, or half of `max_length` if that is less."
    )
    max_windows: Count = doc(32, "Maximum windows per text.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenClassificationConfig(WindowsConfig):
    """Settings of token classification; `aggregation` is the default of a request."""

    aggregation: Aggregation = "simple"
    ignore_labels: Labels = doc(("O",), "Labels that no response contains.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TokenClassificationOptions(TruncationOptions):
    """Options of one text; see TokenClassificationConfig."""

    doc_stride: Stride | None = Field(description="Tokens that neighbouring windows share.")
    ignore_labels: Labels = Field(description="Labels that the response does not contain.")
    aggregation: Aggregation = Field(
        description="How tokens are grouped into entities, as in transformers' pipeline; `none` returns every token."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class QuestionAnsweringConfig(WindowsConfig):
    """Settings of question answering; the defaults are those of transformers' pipeline of that name.

    `max_length` counts the tokens of a question and a window of its context together; None means 384, or the
    model's limit if that is less. `top_k`, `max_answer_tokens` and `align_to_words` are the defaults of a request.
    """

    max_windows: Count = doc(32, "Maximum windows per context; `truncation: true` omits the text after them.")
    top_k: Answers = 1
    max_answer_tokens: AnswerTokens = 15
    align_to_words: bool = True


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class QuestionAnsweringOptions:
    """Options of one question; see QuestionAnsweringConfig."""

    top_k: Answers = Field(description="Maximum answers; more than 1 are returned as a list.")
    max_answer_tokens: AnswerTokens = Field(description="Maximum tokens of an answer.")
    align_to_words: bool = Field(
        description="Whether to widen an answer to whole words, as the tokenizer divides them; wrong for languages "
        "without spaces."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TranslationConfig(TextConfig):
    """Settings of translation. Those with the name of an option are the defaults of a request.

    With a detector, `src_lang` is used for texts whose language is not certain, and `auto` means no language.
    """

    engine: Literal["auto", "torch"] = doc(
        "auto", "`auto` selects CTranslate2 if the archive contains a converted model, else torch."
    )
    precision: _Precision = Field(  # type: ignore[assignment]  # CTranslate2 has more than the other engines
        default="auto",
        description="The engine's arithmetic. `auto` is int8 for CTranslate2 on a CPU, else bf16 if the hardware has "
        "it. CTranslate2 accepts further names, limited to those that the processor supports.",
    )
    src_lang: str | None = None
    tgt_lang: str | None = None
    detector: str | Mapping[str, str] | None = doc(
        None,
        "A fastText model that identifies languages: the name of a file beside the configuration, or "
        "{package, file} of a file in an installed package; the archive contains it. None for no detector.",
    )
    min_score: Share = 0.4  # lid.176.ftz scores a sentence higher, and most of its mistakes, on single words, lower
    split: Split = "none"
    max_sentences: Count = doc(256, "Maximum sentences of all texts of one request that `split: sentences` accepts.")
    max_new_tokens: Count | None = doc(
        None,
        "Maximum tokens of a translation; None derives it from the text's length, within the limit in the "
        "model's files.",
    )
    max_new_tokens_limit: Count = doc(512, "Maximum `max_new_tokens` of a request.")
    num_beams: Count = 1
    num_beams_limit: Count = doc(8, "Maximum beams of a request.")

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
    """Options of one text, under transformers' names; None selects the setting of that name, or the model's."""

    has_settings: ClassVar[bool] = False  # each text has defaults of its own

    src_lang: str | None = doc(None, "The source language, as the model's own code; `auto` identifies it.")
    tgt_lang: str | None = doc(None, "The target language, as the model's own code.")
    min_score: Share | None = doc(None, "Minimum score at which the detected language is used.")
    split: Split | None = doc(None, "`sentences` translates a text sentence by sentence; `none` as a whole.")
    max_new_tokens: Count | None = doc(None, "Maximum tokens of the translation.")
    num_beams: Count | None = doc(None, "The number of beams of the search; 1 is greedy.")
    length_penalty: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] | None = doc(
        None, "A value above 0 favours long translations; affects only a search with beams."
    )
    early_stopping: bool | None = doc(
        None, "Whether to end the search with as many translations as beams; affects only a search with beams."
    )
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=100)] | None = doc(
        None, "The number of tokens of an n-gram that may occur only once; 0 for no limit."
    )
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)] | None = doc(
        None, "A value above 1 makes tokens that have occurred less likely."
    )
