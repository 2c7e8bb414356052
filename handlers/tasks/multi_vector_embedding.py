"""Multi-vector embedding: a text becomes a vector for each of its tokens (ColBERT), compared by MaxSim."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from handlers.aliases import Array
from handlers.engines import Engine, Outputs
from handlers.pipeline.values import Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import Comparison, compare_vectors
from handlers.protocol.output_tensors import matrices
from handlers.text.encoders import Head
from handlers.text.token_config import LateConfig, PromptedOptions
from handlers.text.token_handler import TokensHandler, TokenText

Sentence = TokenText[PromptedOptions]


def read_vectors(task: Any, outputs: Outputs, items: Sequence[Sentence]) -> list[Any]:
    return list(task.split(outputs, items))


def compare_tokens(exact: Sequence[Array], others: Sequence[Array]) -> Comparison:
    return compare_vectors([*chain(*exact)], [*chain(*others)])


class MultiVectorEmbeddingHandler(TokensHandler[LateConfig, Sentence]):
    """Vectors are those of sentence-transformers' MultiVectorEncoder, or of bge-m3's head."""

    answer_kind = Kind("vectors", 0.98, read_vectors, compare_tokens)
    config_class = LateConfig
    head = Head("AutoModel", (), network="late", owner="MultiVectorEncoder")
    options_class = PromptedOptions
    results = Results(matrices("embedding"), api="pooling", also=("rerank",))

    def load(self) -> Engine:
        engine = super().load()
        self.read_late()
        self.results = replace(self.results, is_mean=self.late.is_mean)
        return engine

    def split(self, outputs: Outputs, items: Sequence[Sentence]) -> Sequence[object]:
        """Return the vectors of each item's tokens, (T, E) float32."""
        return [self.vectors_of(outputs, at, item) for at, item in enumerate(items)]
