"""Text classification: a text becomes labels with scores, likeliest first."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from handlers.checkpoints import check_labels
from handlers.engines import Engine, Outputs
from handlers.errors import InvalidOption
from handlers.pipeline.values import Results
from handlers.precision import answers
from handlers.probabilities import function_of, scores_of_rows
from handlers.protocol.output_tensors import LABELS, rankings
from handlers.protocol.requests import Payload
from handlers.protocol.responses import Piped
from handlers.text.config import TextClassificationConfig, TextClassificationOptions
from handlers.text.encoders import UNCERTAIN_SEGMENTS, Head, takes_segments
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text, read_text


class TextClassificationHandler(TextHandler[TextClassificationConfig, Text[TextClassificationOptions]]):
    """Answers are those of transformers' pipeline of that name, always as a list."""

    answer_kind = answers.LABELS
    config_class = TextClassificationConfig
    head = Head("AutoModelForSequenceClassification", ("logits",))
    options_class = TextClassificationOptions
    results = Results(rankings(LABELS), Piped(is_nested=True), view="labels")

    def load(self) -> Engine:
        engine = super().load()
        self.labels = check_labels(self.model_config.id2label, engine)
        self.takes_pairs = takes_segments(self.tokenizer, self.model_config, self.archive.checkpoint_dir) is not None
        self.function = self.config.function_to_apply
        if self.function == "auto":
            self.function = function_of(self.model_config.problem_type, len(self.labels))
        return engine

    def decode(self, payload: Payload) -> Text[TextClassificationOptions]:
        """A second text may accompany the first."""
        item = super().decode(payload)
        if item.options.text_pair is None:
            return item
        if not self.takes_pairs:
            raise InvalidOption(f"text_pair: {UNCERTAIN_SEGMENTS}.")
        text, reading = item.options.text_pair, self.reading(item.options)
        pair = read_text(text, "text_pair", self.config.max_characters, **reading)
        if payload.allowance:
            payload.allowance.take("characters", len(pair), self.config.max_request_characters)
        return replace(item, pair=pair)

    def split(self, outputs: Outputs, items: Sequence[Text[TextClassificationOptions]]) -> Sequence[object]:
        """Turn `logits`, (B, labels), into [{"label", "score"}, ...] for each item, its `top_k` likeliest in order."""
        asked = [item.options.function_to_apply for item in items]
        rows = scores_of_rows(outputs["logits"], [self.function if each == "auto" else each for each in asked])
        order = np.argsort(-rows, axis=1, kind="stable")
        return [
            [{"label": self.labels[index], "score": row[index]} for index in ranks[: item.options.top_k]]
            for row, ranks, item in zip(rows.tolist(), order.tolist(), items, strict=True)
        ]
