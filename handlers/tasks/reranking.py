"""Reranking: a query and a document become a score, by a cross-encoder that reads both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from handlers.engines import Engine, Outputs
from handlers.errors import InvalidBody, InvalidConfig, InvalidOption, ItemError
from handlers.pipeline.values import Inputs, Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import compare_ranks
from handlers.probabilities import sigmoid
from handlers.protocol.output_tensors import columns
from handlers.protocol.requests import Payload
from handlers.text.config import RerankingConfig, RerankingOptions
from handlers.text.encoders import Head
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text, add_tokens, read_text
from handlers.text.pair_templates import PairTemplate
from handlers.text.sentence_files import Prompts, read_activation
from handlers.text.sentence_modules import check_reranker, has_pair_template, read_answer_ids

Pair = Text[RerankingOptions]


def read_scores(task: object, outputs: Outputs, items: Sequence[Pair]) -> list[float]:  # noqa: ARG001
    return [float(score) for score in outputs["logits"][:, 0]]


class RerankingHandler(TextHandler[RerankingConfig, Pair]):
    """Scores are those of sentence-transformers' CrossEncoder; each document is an item."""

    answer_kind = Kind("ranks", 0.98, read_scores, compare_ranks)
    config_class = RerankingConfig
    inputs = Inputs(frozenset({"query", "document"}), in_threads=False, are_shared=True)
    head = Head("AutoModelForSequenceClassification", ("logits",), is_paired=True)
    options_class = RerankingOptions
    results = Results(columns({"score": np.float32}), view="ranking", api="rerank")

    def load(self) -> Engine:
        engine = super().load()
        check_reranker(self.archive.checkpoint_dir)
        if not read_answer_ids(self.archive.checkpoint_dir) and self.model_config.num_labels != 1:
            raise InvalidConfig(
                f"reranking: the model has {self.model_config.num_labels} labels, and a reranker has one; use "
                "the task of text classifiers, whose option text_pair is the second text"
            )
        self.activation, self.prompt = read_activation(self.archive.checkpoint_dir), ""
        if (self.archive.checkpoint_dir / "modules.json").is_file():
            prompts = Prompts.read(self.archive.checkpoint_dir)
            self.prompt = prompts.texts.get(prompts.default or "", "")  # it precedes the query, or is a message
        self.template: PairTemplate | None = None
        if has_pair_template(self.archive.checkpoint_dir):
            is_trusted = self.config.trust_remote_code
            self.template = PairTemplate(self.archive.checkpoint_dir, self.prompt, trust_remote_code=is_trusted)
            self.prompt = ""
        if self.activation in (sigmoid, np.asarray):  # TEI's name for logits
            self.results = replace(self.results, only={"raw_scores": self.activation is np.asarray})
        return engine

    def sample(self) -> Payload:
        return Payload({"query": "What comes next?", "document": "What went before decides what comes next."})

    def decode(self, payload: Payload) -> Pair:
        """Check {"query": ..., "document": ...}; either may be beside "instances", for all of them."""
        if not isinstance(payload.value, Mapping):
            raise InvalidBody('A pair must be {"query": ..., "document": ...}.')
        options, most_characters = payload.options, self.config.max_characters
        reading = self.reading(options)
        query, document = (
            read_text(payload.value.get(name), name, most_characters, **reading) for name in ("query", "document")
        )
        most = options.max_tokens_per_doc
        if most is not None and most < self.max_length:
            raise InvalidOption(f"max_tokens_per_doc: {most}; this model cuts documents at {self.max_length} tokens.")
        if payload.allowance:  # a query is sent once, and tokenised for each document
            payload.allowance.take("characters", len(query) + len(document), self.config.max_request_characters)
        return Text(self.prompt + query, options, pair=document)

    def prepare(self, items: Sequence[Pair]) -> Sequence[Pair | ItemError]:
        """Tokenise all items in one call, rendered by the model's chat template if it has one."""
        if self.template is None:
            return super().prepare(items)
        rows = self.template.encode([(item.text, item.pair or "") for item in items])
        return [self.fit(item, ids, [0] * len(ids), None) for item, ids in zip(items, rows, strict=True)]

    def fit(self, item: Pair, ids: Sequence[int], type_ids: Sequence[int], encoding: Any) -> Pair | ItemError:
        limit, side = self.limit(item.options), self.cut_side(item.options)
        if self.template is None or side is None or len(ids) <= limit:
            return super().fit(item, ids, type_ids, encoding)
        try:
            return add_tokens(item, self.template.cut(ids, limit, side), limit, type_ids[:limit])
        except InvalidOption as error:
            return ItemError.of(error)

    def split(self, outputs: Outputs, items: Sequence[Pair]) -> Sequence[object]:  # noqa: ARG002
        """Turn `logits`, (B, 1), into {"score": float} for each item."""
        scores = self.activation(np.asarray(outputs["logits"], np.float32))
        return [{"score": score} for score in scores.flatten().tolist()]
