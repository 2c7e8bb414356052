"""Reranking: a query and a document become a score, by a cross-encoder that reads both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from handlers.engines import Engine, Outputs
from handlers.errors import InvalidBody, InvalidConfig, InvalidOption
from handlers.pipeline.values import Inputs, Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import compare_ranks
from handlers.probabilities import sigmoid
from handlers.protocol.output_tensors import columns
from handlers.protocol.requests import Payload
from handlers.text.config import RerankingConfig, RerankingOptions
from handlers.text.encoders import Head
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text, read_text
from handlers.text.sentence_files import Prompts, read_activation
from handlers.text.sentence_modules import check_reranker

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
        if self.model_config.num_labels != 1:
            raise InvalidConfig(
                f"reranking: the model has {self.model_config.num_labels} labels, and a reranker has one; use "
                "the task of text classifiers, whose option text_pair is the second text"
            )
        check_reranker(self.checkpoint_dir)
        self.activation, self.prompt = read_activation(self.checkpoint_dir), ""
        if (self.checkpoint_dir / "modules.json").is_file():
            prompts = Prompts.read(self.checkpoint_dir)
            self.prompt = prompts.texts.get(prompts.default or "", "")  # it precedes the query
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

    def split(self, outputs: Outputs, items: Sequence[Pair]) -> Sequence[Any]:  # noqa: ARG002
        """Turn `logits`, (B, 1), into {"score": float} for each item."""
        scores = self.activation(np.asarray(outputs["logits"], np.float32))
        return [{"score": score} for score in scores.flatten().tolist()]
