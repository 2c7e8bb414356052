"""Sparse embedding: a text becomes weights of the vocabulary's words, by SPLADE's formula or bge-m3's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from handlers.engines import Arrays, Engine, Outputs
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.values import Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import compare_vectors
from handlers.protocol.output_tensors import sequences
from handlers.text.encoders import Head
from handlers.text.token_config import SparseConfig, SparseOptions
from handlers.text.token_handler import TokensHandler, TokenText

Sentence = TokenText[SparseOptions]


def read_weights(task: Any, outputs: Outputs, items: Sequence[Sentence]) -> list[Any]:
    rows = np.zeros((len(items), task.model_config.vocab_size), np.float32)
    for at, item in enumerate(items):
        indices, values = task.words_of(outputs, at, item)
        rows[at, indices] = values
    return list(rows)


class SparseEmbeddingHandler(TokensHandler[SparseConfig, Sentence]):
    """Weights are those of sentence-transformers' SparseEncoder; only those above zero leave the worker."""

    answer_kind = Kind("vectors", 0.98, read_weights, compare_vectors)
    config_class = SparseConfig
    head = Head("AutoModelForMaskedLM", (), network="sparse", owner="SparseEncoder")
    options_class = SparseOptions
    results = Results(sequences({"indices": -1, "values": np.float32(0)}), api="sparse")

    def load(self) -> Engine:
        engine = super().load()
        self.read_query_weights()
        return engine

    def cost(self, item: Sentence) -> Cost:
        return Cost(sent=len(item.ids), group="words") if self.is_static(item) else super().cost(item)

    def forward(self, inputs: Arrays, items: Sequence[Sentence]) -> Outputs:
        """Run the model once, except for queries, if their words have static weights."""
        return self.weigh(items) if self.is_static(items[0]) else super().forward(inputs, items)

    def split(self, outputs: Outputs, items: Sequence[Sentence]) -> Sequence[object]:
        """Return {"indices": (K,) int64, "values": (K,) float32} for each item."""
        return [self.words(outputs, at, item) for at, item in enumerate(items)]
