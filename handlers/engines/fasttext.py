"""fastText labels a text in some microseconds. Its arrays contain Python strings."""

from pathlib import Path

import fasttext
import numpy as np

from handlers.engines import Arrays, Outputs
from handlers.errors import InvalidConfig


class FastTextEngine:
    """A supervised model, .bin or quantised .ftz."""

    def __init__(self, path: Path) -> None:
        """Load a model; InvalidConfig if the file is missing or not a fastText model."""
        try:
            self._model = fasttext.load_model(str(path))
        except ValueError as error:
            raise InvalidConfig(f"{path.name}: {error}".replace(str(path), path.name)) from error
        self.description = f"fasttext cpu {path.suffix.removeprefix('.')}"
        self.input_names = ("texts", "top_k")

    def run(self, inputs: Arrays) -> Outputs:
        """Find the likeliest labels of each text.

        `texts` (B,) str without line breaks and `top_k` (B,) int, the most labels of each -> `labels` (B,) tuples of
        str, likeliest first, and `scores` (B,) tuples of float.
        """
        rows = zip(inputs["texts"], inputs["top_k"], strict=True)
        predictions = [self._model.predict(text, k=int(k)) for text, k in rows]
        labels, scores = np.empty(len(predictions), object), np.empty(len(predictions), object)
        for index, (names, probabilities) in enumerate(predictions):
            # A quantised model's softmax may be slightly above one.
            labels[index], scores[index] = names, tuple(min(1.0, float(p)) for p in probabilities)
        return {"labels": labels, "scores": scores}
