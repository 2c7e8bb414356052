"""Hybrid embedding: bge-m3's vector, weights of words and vectors of tokens of a text, of one run of the model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from handlers.engines import Outputs
from handlers.errors import InvalidOption
from handlers.pipeline.values import Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import compare_vectors
from handlers.text.encoders import Head
from handlers.text.token_config import HybridConfig, HybridOptions
from handlers.text.token_handler import TokensHandler, TokenText

Sentence = TokenText[HybridOptions]
# FlagEmbedding's options, and its names of the parts of an answer.
PARTS = {"return_dense": "dense_vecs", "return_sparse": "lexical_weights", "return_colbert_vecs": "colbert_vecs"}


def read_vectors(task: Any, outputs: Outputs, items: Sequence[Sentence]) -> list[Any]:
    """Return all parts of each answer as one vector, the tokens' vectors by their mean."""
    found = []
    for at, item in enumerate(items):
        words = np.zeros(task.model_config.vocab_size, np.float32)
        indices, values = task.words_of(outputs, at, item)
        words[indices] = values
        parts = (outputs["dense"][at], words, task.vectors_of(outputs, at, item).mean(0))
        found.append(np.concatenate([part / max(float(np.linalg.norm(part)), 1e-9) for part in parts]))
    return found


class HybridEmbeddingHandler(TokensHandler[HybridConfig, Sentence]):
    """Answers are those of FlagEmbedding's BGEM3FlagModel."""

    answer_kind = Kind("vectors", 0.98, read_vectors, compare_vectors)
    config_class = HybridConfig
    head = Head("AutoModel", (), network="every", owner="SentenceTransformer")
    options_class = HybridOptions
    results = Results(api="embeddings", also=("sparse", "pooling", "rerank"), is_mean=True, only={"return_dense": True})

    def check(self, options: object) -> None:
        if not any(getattr(options, name) for name in PARTS):
            raise InvalidOption(f"return_dense: false needs another part: {', '.join([*PARTS][1:])}.")

    def split(self, outputs: Outputs, items: Sequence[Sentence]) -> Sequence[object]:
        """Return the parts that each item's client asks for."""
        return [self._parts(outputs, at, item) for at, item in enumerate(items)]

    def _parts(self, outputs: Outputs, at: int, item: Sentence) -> dict[str, object]:
        found: dict[str, object] = {}
        if item.options.return_dense:
            found["dense_vecs"] = outputs["dense"][at]
        if item.options.return_sparse:
            found["lexical_weights"] = self.words(outputs, at, item)
        if item.options.return_colbert_vecs:
            found["colbert_vecs"] = self.vectors_of(outputs, at, item)
        return found
