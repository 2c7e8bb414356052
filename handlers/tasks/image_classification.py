"""Image classification with any torchvision classifier turns an image into probabilities of labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from handlers.config import parse_options
from handlers.engines import Outputs
from handlers.probabilities import softmax
from handlers.protocol.output_tensors import LABELS, Record, ranked
from handlers.protocol.requests import Payload
from handlers.vision.config import ImageClassificationConfig, ImageClassificationOptions
from handlers.vision.handler import ImageHandler, Seen
from handlers.vision.images import decode_image, grey_jpeg


def _from_mapping(result: Mapping[str, float]) -> Sequence[Record]:
    """Make records of {label: score, ...}, likeliest first."""
    return [{"label": label, "score": score} for label, score in result.items()]


class ImageClassificationHandler(ImageHandler[ImageClassificationConfig]):
    """The network is a PixelClassifier: pixels -> logits. Labels are unique."""

    config_class = ImageClassificationConfig
    options_class = ImageClassificationOptions
    output_tensors = ranked(LABELS, _from_mapping)

    def network(self) -> tuple[torch.nn.Module, Sequence[str]]:
        # torchvision takes seconds to import, and a worker on OpenVINO does not need it.
        from handlers.vision.pixel_classifier import load_classifier  # noqa: PLC0415

        weights = self.model_dir / "model.pt"
        return load_classifier(weights, self.config, len(self.labels), self.device), ["logits"]

    def sample(self) -> Payload:
        """A grey JPEG."""
        return Payload(grey_jpeg(self.config.resize_size))

    def decode(self, payload: Payload) -> Seen:
        """Cut the model's square out of bytes, {"b64": ...} or pixels, and read the option `top_k`."""
        options = parse_options(ImageClassificationOptions, payload.options)
        return Seen(decode_image(payload.value, self.config, payload.allowance), options)

    def split(self, outputs: Outputs, items: Sequence[Seen]) -> Sequence[Any]:
        """Turn `logits`, (B, classes), into {label: probability} per item: its `top_k` likeliest, likeliest first."""
        probabilities = softmax(outputs["logits"])
        order = np.argsort(-probabilities, axis=1, kind="stable")
        return [
            {self.labels[index]: float(row[index]) for index in ranks[: item.options.top_k or self.config.top_k]}
            for row, ranks, item in zip(probabilities, order, items, strict=True)
        ]
