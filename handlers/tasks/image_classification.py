"""Image classification: an image becomes probabilities of labels, by a classifier of torchvision or transformers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from handlers.engines import Engine, Outputs
from handlers.pipeline.values import Results
from handlers.precision import answers
from handlers.probabilities import function_of, scores_of_rows
from handlers.protocol.output_tensors import LABELS, Record, rankings
from handlers.protocol.responses import Piped
from handlers.vision.config import ImageClassificationConfig, ImageClassificationOptions
from handlers.vision.handler import DecodedImage, ImageHandler


def _to_records(result: Mapping[str, float]) -> Sequence[Record]:
    """Turn {label: score, ...} into records, likeliest first."""
    return [{"label": label, "score": score} for label, score in result.items()]


class ImageClassificationHandler(ImageHandler[ImageClassificationConfig]):
    """The network is a PixelClassifier: pixels -> logits. Labels are unique."""

    answer_kind = answers.LABELS._replace(measure="top-1")
    config_class = ImageClassificationConfig
    options_class = ImageClassificationOptions
    results = Results(rankings(LABELS, _to_records), Piped(_to_records), view="scores")

    def load(self) -> Engine:
        engine = super().load()
        self.function = "softmax"
        if self.config.arch is None:
            # The import of transformers would take seconds, for one setting of the model.
            settings = json.loads((self.archive.checkpoint_dir / "config.json").read_text(encoding="utf-8"))
            self.function = function_of(settings.get("problem_type"), len(self.labels))
        return engine

    def load_network(self) -> tuple[Any, Sequence[str]]:
        # The import of both takes seconds, and a worker on OpenVINO does not need them.
        import torch  # noqa: PLC0415

        from handlers.engines.torch import dtype_for  # noqa: PLC0415
        from handlers.vision.pixel_classifier import build_torchvision, load_classifier  # noqa: PLC0415
        from handlers.vision.pixel_network import read_state  # noqa: PLC0415

        arch, preprocessing = self.config.arch, self.preprocessing
        if arch is None:
            network = load_classifier(self.archive.checkpoint_dir, preprocessing)
        else:
            state = read_state(self.archive.model_dir / "model.pt")
            network = build_torchvision(state, arch, len(self.labels), preprocessing)
        network.classifier.to(dtype_for(self.archive.device, self.config.precision), memory_format=torch.channels_last)
        return network, ["logits"]

    def split(self, outputs: Outputs, items: Sequence[DecodedImage]) -> Sequence[object]:
        """Turn `logits`, (B, classes), into {label: score} for each item: its `top_k` likeliest, likeliest first."""
        asked = [item.options.function_to_apply or self.function for item in items]
        probabilities = scores_of_rows(outputs["logits"], asked)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        return [
            {self.labels[index]: float(row[index]) for index in ranks[: item.options.top_k or self.config.top_k]}
            for row, ranks, item in zip(probabilities, order, items, strict=True)
        ]
