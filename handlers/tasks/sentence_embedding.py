"""Sentence embedding: a text becomes a vector, pooled and normalised by the model's own files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import normalizers

from handlers.aliases import Array, Json
from handlers.engines import Arrays, Engine, Outputs
from handlers.errors import InvalidBody, InvalidConfig, InvalidOption, ItemError, TextTooLong
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.values import Results
from handlers.precision import answers
from handlers.protocol.output_tensors import vectors
from handlers.protocol.requests import Payload
from handlers.protocol.tensors import read_ranges
from handlers.text.config import SentenceEmbeddingConfig, SentenceEmbeddingOptions
from handlers.text.encoders import STATES, Head
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text, add_tokens
from handlers.text.late_chunks import Chunked, find_tokens, pool_chunks, read_chunks
from handlers.text.sentence_files import Dimensions, Prompts, read_token_ids, scale_to_unit
from handlers.text.sentence_modules import check_mean, find_vector_size, has_unit_length, transformer_settings
from handlers.text.windows import SHARED_TOKENS, Windowed, split_behind

if TYPE_CHECKING:
    pass

Sentence = Text[SentenceEmbeddingOptions]

# The way out for clients of LangChain, which sends token ids by default.
LANGCHAIN = "LangChain's OpenAIEmbeddings sends texts with check_embedding_ctx_length=False."


class SentenceEmbeddingHandler(TextHandler[SentenceEmbeddingConfig, Sentence]):
    """Prompts precede texts as in sentence-transformers."""

    answer_kind = answers.VECTORS
    config_class = SentenceEmbeddingConfig
    head = Head("AutoModel", ("embeddings",), is_pooled=True, owner="SentenceTransformer")
    options_class = SentenceEmbeddingOptions
    results = Results(vectors("embedding"), view="vectors", api="embeddings")

    def load(self) -> Engine:
        engine = super().load()
        size = find_vector_size(self.archive.checkpoint_dir, self.model_config.hidden_size)
        if transformer_settings(self.archive.checkpoint_dir).get("do_lower_case"):
            backend = self.tokenizer.backend_tokenizer
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *filter(None, [backend.normalizer])])
        for setting in ("long_text", "has_late_chunking"):
            if value := getattr(self.config, setting):
                check_mean(self.archive.checkpoint_dir, f"{setting}: {str(value).lower()}")
                if not self.tokenizer.is_fast:
                    raise InvalidConfig(f"{setting}: needs tokenizer.json, which the archive lacks")
        self.needs_places = self.config.has_late_chunking
        self.prompts = Prompts.read(self.archive.checkpoint_dir)
        self.dimensions = Dimensions.read(self.archive.checkpoint_dir, size, is_any=self.config.is_matryoshka)
        self.has_unit_length = has_unit_length(self.archive.checkpoint_dir)
        only = {"normalized": True} if self.has_unit_length else {}
        ranges = read_ranges(self.config.int8_ranges, size)
        self.results = replace(self.results, tensors=vectors("embedding", size), ranges=ranges, only=only)
        return engine

    def decode(self, payload: Payload) -> Sentence:
        """Check a text, {"text": ...} or token ids, and the options."""
        ids = read_token_ids(payload.value["text"]) if isinstance(payload.value, Mapping) else None
        if ids is not None:
            return self._from_ids(ids, payload.options)
        sentence = super().decode(payload)
        options = sentence.options
        prompt = self.prompts.find(options.prompt_name, options.input_type)
        return (
            read_chunks(sentence, prompt) if options.late_chunking else replace(sentence, text=prompt + sentence.text)
        )

    def _from_ids(self, ids: list[int], options: SentenceEmbeddingOptions) -> Sentence:
        """Accept the model's own token ids unchanged, special ones included."""
        self.check(options)
        if options.late_chunking:
            raise InvalidBody("text: late_chunking needs a text; token ids have no characters.")
        if self.config.token_ids is None:
            raise InvalidBody(f"text: token ids are not accepted (setting token_ids); send texts. {LANGCHAIN}")
        if min(ids) < 0 or max(ids) >= self.model_config.vocab_size:
            size = self.model_config.vocab_size
            raise InvalidBody(f"text: a token id is outside this model's vocabulary of {size}. {LANGCHAIN}")
        if self.cut_side(options) is not None:
            limit = self.limit(options)
            ids = ids[-limit:] if options.truncation_side == "left" else ids[:limit]
        return Text("", options, ids=ids)

    def check(self, options: Any) -> None:
        if options.late_chunking and not self.config.has_late_chunking:
            raise InvalidOption(
                "late_chunking: must be false; the archive was built without it (setting has_late_chunking)."
            )
        if options.spans is not None and not options.late_chunking:
            raise InvalidOption("spans: needs late_chunking: true.")
        self.dimensions.check(options.dimensions)
        if options.normalize is False and (options.dimensions or self.has_unit_length):
            raise InvalidOption("normalize: must be true; this model, or `dimensions`, scales vectors to unit length.")

    def prepare(self, items: Sequence[Sentence]) -> Sequence[Sentence | ItemError]:
        """Tokenise the texts; token ids only need a check of their number."""
        texts = [item for item in items if not item.ids]
        prepared = iter(super().prepare(texts) if texts else ())
        return [add_tokens(item, item.ids, self.max_length) if item.ids else next(prepared) for item in items]

    def fit(self, item: Sentence, ids: Sequence[int], type_ids: Sequence[int], encoding: Any) -> Sentence | ItemError:
        """Divide a long text into windows, each with the prompt in front, if the settings allow it."""
        if isinstance(item, Chunked):
            return find_tokens(item, encoding, self.max_length)
        is_whole = len(ids) <= self.limit(item.options) or self.cut_side(item.options) is not None
        if self.config.long_text is None or is_whole:
            return super().fit(item, ids, type_ids, encoding)
        prompt = self.prompts.find(item.options.prompt_name, item.options.input_type)
        windows = split_behind(encoding, len(prompt), self.max_length, min(SHARED_TOKENS, self.max_length // 4))
        if not windows or len(windows) > self.config.max_windows:
            most = self.config.max_windows
            return ItemError.of(TextTooLong(f"text: {len(ids)} tokens; max_windows of {self.max_length} is {most}."))
        return Windowed(item.text, item.options, ids, type_ids, windows=windows)

    def cost(self, item: Sentence) -> Cost:
        if isinstance(item, Windowed):
            return Cost(len(item.windows) * self.max_length, sent=sum(len(each.ids) for each in item.windows))
        return super().cost(item)

    def collate(self, items: Sequence[Sentence]) -> Arrays:
        return self.stack([row for item in items for row in getattr(item, "windows", [item])])

    def _join(self, vectors: Array, items: Sequence[Sentence]) -> Array:
        """Return one vector for each item, of rows of windows, (R, D)."""
        if len(vectors) == len(items):  # a long text has several windows
            return vectors
        rows, joined = iter(vectors), []
        for item in items:
            if not isinstance(item, Windowed):
                joined.append(next(rows))
                continue
            parts = np.stack([next(rows) for _ in item.windows])
            mean = np.average(parts, axis=0, weights=[each.tokens for each in item.windows]).astype(np.float32)
            joined.append(scale_to_unit(mean) if self.has_unit_length else mean)
        return np.stack(joined)

    def split(self, outputs: Outputs, items: Sequence[Sentence]) -> Sequence[object]:
        """Return each item's row of `embeddings`, (B, D) float32."""
        found = self._finish(self._join(outputs["embeddings"], items), items)
        rows = accumulate((len(getattr(item, "windows", [item])) for item in items), initial=0)
        for at, (row, item) in enumerate(zip(rows, items, strict=False)):
            if isinstance(item, Chunked):
                found[at] = self._chunks(outputs[STATES][row], item)
        return found

    def _finish(self, vectors: Array, items: Sequence[Sentence]) -> list[object]:
        """Cut and scale vectors, (B, D), as their clients ask."""
        cut = self.dimensions.cut(vectors, [item.options.dimensions for item in items])
        asked = [item.options.normalize for item in items]
        return [scale_to_unit(each) if is_asked else each for each, is_asked in zip(cut, asked, strict=True)]

    def _chunks(self, states: Array, item: Chunked[Any]) -> list[Json]:
        """Return the vector and the characters of each chunk."""
        means = pool_chunks(states, item)
        if self.has_unit_length:
            means = np.stack([*map(scale_to_unit, means)])
        vectors = self._finish(means, [item] * len(means))
        return [
            {"start": start, "end": stop, "embedding": each}
            for (start, stop), each in zip(item.spans, vectors, strict=True)
        ]
