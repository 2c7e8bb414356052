"""Language identification: a text becomes labels with scores, by a fastText model."""

from collections.abc import Sequence

import numpy as np

from handlers.base import BatchHandler
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.fasttext import FastTextEngine
from handlers.errors import InvalidConfig
from handlers.pipeline.values import TEXTS, Results
from handlers.protocol.output_tensors import LABELS, rankings
from handlers.protocol.requests import Payload
from handlers.protocol.responses import Piped
from handlers.text.config import LanguageIdConfig, LanguageIdOptions
from handlers.text.inputs import Text, read_payload

PREFIX = "__label__"


class LanguageIdHandler(BatchHandler[LanguageIdConfig, Text[LanguageIdOptions]]):
    """Serves an archive with one fastText model, model.ftz or model.bin."""

    config_class = LanguageIdConfig
    options_class = LanguageIdOptions
    inputs = TEXTS
    results = Results(rankings(LABELS), Piped(is_nested=True), view="languages")

    def load(self) -> Engine:
        found = [
            path
            for path in (self.archive.model_dir / "model.ftz", self.archive.model_dir / "model.bin")
            if path.is_file()
        ]
        if not found:
            raise InvalidConfig("this archive lacks model.ftz and model.bin; build it again")
        return FastTextEngine(found[0])

    def sample(self) -> Payload:
        return Payload("Bonjour tout le monde.")

    def decode(self, payload: Payload) -> Text[LanguageIdOptions]:
        """Check a text, or {"text": ...}, and put it on one line."""
        text = read_payload(payload, self.config.max_characters)
        # For fastText a line break ends the text, and every white space separates words.
        return Text(" ".join(text.split()), payload.options)

    def collate(self, items: Sequence[Text[LanguageIdOptions]]) -> Arrays:
        """Stack the items: `texts`, (B,) str, and `top_k`, (B,) int."""
        return {
            "texts": np.array([item.text for item in items], object),
            "top_k": np.array([item.options.top_k or self.config.top_k for item in items]),
        }

    def split(self, outputs: Outputs, items: Sequence[Text[LanguageIdOptions]]) -> Sequence[object]:
        """Turn labels and scores, (B,) each, into [{"label", "score"}, ...] per item, likeliest first."""
        rows = zip(outputs["labels"], outputs["scores"], items, strict=True)
        return [self._predictions(labels, scores, item.options) for labels, scores, item in rows]

    def _predictions(
        self, labels: Sequence[str], scores: Sequence[float], options: LanguageIdOptions
    ) -> Sequence[object]:
        has_prefix = self.config.label_prefix if options.label_prefix is None else options.label_prefix
        threshold = self.config.threshold if options.threshold is None else options.threshold
        return [
            {"label": label if has_prefix else label.removeprefix(PREFIX), "score": score}
            for label, score in zip(labels, scores, strict=True)
            if score >= threshold
        ]
