"""Sentence embedding turns a text into a vector, which is pooled and normalised as the model's own files say."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenizers import normalizers

from handlers.engines import Engine, Outputs
from handlers.errors import InvalidBody, ItemError
from handlers.protocol.output_tensors import vectors
from handlers.protocol.requests import Payload
from handlers.text.config import SentenceEmbeddingConfig, SentenceEmbeddingOptions
from handlers.text.encoders import Head
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text, tokenised
from handlers.text.sentence_files import Dimensions, Prompts, refused, token_ids
from handlers.text.sentence_modules import transformer_settings, vector_size

Sentence = Text[SentenceEmbeddingOptions]


class SentenceEmbeddingHandler(TextHandler[SentenceEmbeddingConfig, Sentence]):
    """Prompts are put in front of texts as sentence-transformers does."""

    config_class = SentenceEmbeddingConfig
    head = Head("AutoModel", ("embeddings",), is_pooled=True)
    options_class = SentenceEmbeddingOptions
    output_tensors = vectors("embedding")
    api = "embeddings"

    def load(self) -> Engine:
        engine = super().load()
        size = vector_size(self.checkpoint_dir, self.model_config.hidden_size)
        if transformer_settings(self.checkpoint_dir).get("do_lower_case"):
            backend = self.tokenizer.backend_tokenizer
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *filter(None, [backend.normalizer])])
        self.prompts = Prompts.read(self.checkpoint_dir)
        self.dimensions = Dimensions.read(self.checkpoint_dir, size, is_any=self.config.is_matryoshka)
        self.output_tensors = vectors("embedding", size)
        return engine

    def decode(self, payload: Payload) -> Sentence:
        """Check a text, or {"text": ...} where token ids may stand for it, and the options."""
        ids = token_ids(payload.value["text"]) if isinstance(payload.value, Mapping) else None
        if ids is not None:
            return self._of_own(ids, self.options(payload.options))
        sentence = super().decode(payload)
        options = sentence.options
        return replace(sentence, text=self.prompts.of(options.prompt_name, options.input_type) + sentence.text)

    def _of_own(self, ids: list[int], options: SentenceEmbeddingOptions) -> Sentence:
        """Take the model's own token ids as they are, special ones included."""
        if self.config.token_ids is None:
            raise refused()
        if min(ids) < 0 or max(ids) >= self.model_config.vocab_size:
            raise InvalidBody(
                f"text: a token id outside this model's vocabulary of {self.model_config.vocab_size}. "
                "LangChain's OpenAIEmbeddings sends texts with check_embedding_ctx_length=False."
            )
        return Text("", options, ids=ids[: self.max_length] if self.config.truncation else ids)

    def options(self, sent: Mapping[str, Any]) -> Any:
        options = super().options(sent)
        self.dimensions.check(options.dimensions)
        return options

    def prepare(self, items: Sequence[Sentence]) -> Sequence[Sentence | ItemError]:
        """What came as the model's own token ids is not tokenised again."""
        texts = [item for item in items if not item.ids]
        prepared = iter(super().prepare(texts) if texts else ())
        return [tokenised(item, item.ids, self.max_length) if item.ids else next(prepared) for item in items]

    def split(self, outputs: Outputs, items: Sequence[Sentence]) -> Sequence[Any]:
        """Return each item's row of `embeddings`, (B, D) float32, which is written as [float, ...]."""
        return self.dimensions.cut(outputs["embeddings"], [item.options.dimensions for item in items])
