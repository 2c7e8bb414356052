"""Sentence embedding turns a text into a vector, which is pooled and normalised as the model's own files say."""

from collections.abc import Sequence
from typing import Any

from handlers.config import NoOptions
from handlers.engines import Outputs
from handlers.protocol.output_tensors import Vectors
from handlers.text.config import TextConfig
from handlers.text.encoders import Head
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text


class SentenceEmbeddingHandler(TextHandler[TextConfig, Text[NoOptions]]):
    """See `TextHandler`."""

    head = Head("AutoModel", ("embeddings",), is_pooled=True)
    options_class = NoOptions
    output_tensors = Vectors("embedding")

    def split(self, outputs: Outputs, items: Sequence[Text[NoOptions]]) -> Sequence[Any]:  # noqa: ARG002
        """Give each item its row of `embeddings`, (B, D) float32, which is written as [float, ...]."""
        return list(outputs["embeddings"])
