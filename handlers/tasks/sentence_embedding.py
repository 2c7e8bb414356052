"""Sentence embedding turns a text into a vector, which is pooled and normalised as the model's own files say."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.engines import Engine, Outputs
from handlers.errors import ItemError, UnknownOption, UnknownShape
from handlers.protocol.output_tensors import Vectors
from handlers.protocol.requests import Payload
from handlers.text.config import SentenceEmbeddingConfig, SentenceEmbeddingOptions
from handlers.text.encoders import Head
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text, tokenised
from handlers.text.sentence_files import Prompts, Vocabulary, matryoshka, refused, token_ids

Sentence = Text[SentenceEmbeddingOptions]


class SentenceEmbeddingHandler(TextHandler[SentenceEmbeddingConfig, Sentence]):
    """See `TextHandler`. Prompts are put in front of texts as sentence-transformers does."""

    config_class = SentenceEmbeddingConfig
    head = Head("AutoModel", ("embeddings",), is_pooled=True)
    options_class = SentenceEmbeddingOptions
    output_tensors = Vectors("embedding")
    api = "embeddings"

    def load(self) -> Engine:
        """See `BatchHandler.load`."""
        engine = super().load()
        self.size: int = self.model_config.hidden_size
        self.output_tensors = Vectors("embedding", self.size)
        self.prompts = Prompts.read(self.checkpoint_dir)
        self.sizes = matryoshka(self.checkpoint_dir, self.size, is_any=self.config.is_matryoshka)
        self.vocabulary = None if self.config.token_ids in (None, "own") else Vocabulary(self.model_dir)
        return engine

    def decode(self, payload: Payload) -> Sentence:
        """Check a text, or {"text": ...} where token ids may stand for it, and the options."""
        ids = token_ids(payload.value["text"]) if isinstance(payload.value, Mapping) else None
        if ids is not None:
            if self.vocabulary is None:
                return self._of_own(ids, self._checked(self.options(payload.options)))
            payload = replace(payload, value=self.vocabulary.text(ids))
        sentence = super().decode(payload)
        options = self._checked(sentence.options)
        return replace(sentence, text=self.prompts.of(options.prompt_name, options.input_type) + sentence.text)

    def _of_own(self, ids: list[int], options: SentenceEmbeddingOptions) -> Sentence:
        """Take the model's own token ids as they are, special ones included."""
        if self.config.token_ids is None:
            raise refused()
        if min(ids) < 0 or max(ids) >= self.model_config.vocab_size:
            raise UnknownShape(f"text: a token id outside the vocabulary of {self.model_config.vocab_size}.")
        return Text("", options, ids=ids[: self.max_length] if self.config.truncation else ids)

    def _checked(self, options: SentenceEmbeddingOptions) -> SentenceEmbeddingOptions:
        wanted = options.dimensions
        if wanted is None or wanted == self.size or (wanted < self.size and wanted in self.sizes):
            return options
        if wanted > self.size:
            raise UnknownOption(f"dimensions: {wanted}; this model's vectors have {self.size}.")
        if not self.sizes:
            raise UnknownOption(
                f"dimensions: only {self.size}; neither this model nor its archive (is_matryoshka) allows others."
            )
        raise UnknownOption(f"dimensions: must be one of {', '.join(map(str, self.sizes))}.")

    def prepare(self, items: Sequence[Sentence]) -> Sequence[Sentence | ItemError]:
        """See `TextHandler.prepare`; what came as the model's own token ids is not tokenised again."""
        texts = [item for item in items if not item.ids]
        prepared = iter(super().prepare(texts) if texts else ())
        return [tokenised(item, item.ids, self.max_length) if item.ids else next(prepared) for item in items]

    def split(self, outputs: Outputs, items: Sequence[Sentence]) -> Sequence[Any]:
        """Return each item's row of `embeddings`, (B, D) float32, which is written as [float, ...]."""
        rows = zip(outputs["embeddings"], items, strict=True)
        return [row if item.options.dimensions in (None, self.size) else _cut(row, item) for row, item in rows]


def _cut(vector: NDArray[np.float32], item: Sentence) -> NDArray[np.float32]:
    """Take the first numbers of a vector, and scale them to unit length."""
    part = vector[: item.options.dimensions]
    length = max(float(np.linalg.norm(part)), 1e-12)
    return (part / length).astype(np.float32)
