"""Settings and options of the tasks whose answers are weights of words, or a vector for each token."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Count, doc
from handlers.text.config import RetrievalConfig, TruncationOptions

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class PromptedOptions(TruncationOptions):
    """Options of one text that may have a prompt."""

    input_type: Literal["query", "document", "classification", "clustering"] | None = doc(
        None, "The role of the text: selects the model's prompt, its length and its module."
    )
    prompt_name: str | None = doc(None, "The name of one of the model's prompts, which is put in front of the text.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SparseConfig(RetrievalConfig):
    """Settings of weights of words; `top_k` and `threshold` are the defaults of a request."""

    # The logits of a token are as many as the vocabulary has words: 2048 tokens of BERT's are 250 MB.
    max_batch_tokens: Count | None = doc(2048, "Maximum padded tokens per micro-batch.")
    top_k: Count | None = None
    threshold: Weight = 0.0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SparseOptions(PromptedOptions):
    """Options of one text; see SparseConfig."""

    top_k: Count | None = Field(description="Maximum weights, the largest ones; null for the model's own number.")
    threshold: Weight = Field(description="Only weights above this are returned.")
    return_tokens: bool = doc(False, "Whether the response has each index's token, too.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class LateConfig(RetrievalConfig):
    """Settings of a vector for each token."""

    truncation: bool = doc(True, "Whether to cut a text at the model's length for its kind, as its library does.")
    max_request_tokens: Count | None = 65_536


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class HybridConfig(SparseConfig):
    """Settings of a model with a vector, weights of words and vectors of tokens for each text."""

    max_batch_tokens: Count | None = doc(8192, "Maximum padded tokens per micro-batch.")
    max_request_tokens: Count | None = 65_536


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class HybridOptions(SparseOptions):
    """Options of one text, by FlagEmbedding's names."""

    return_dense: bool = doc(True, "Whether the response has the vector.")
    return_sparse: bool = doc(False, "Whether the response has the weights of words.")
    return_colbert_vecs: bool = doc(False, "Whether the response has a vector for each token.")
