"""Image classification turns an image into probabilities of labels, by a classifier of torchvision or transformers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from handlers.engines import Engine, Outputs
from handlers.engines.torch import dtype_for
from handlers.probabilities import function_of, scores
from handlers.protocol.output_tensors import LABELS, Record, ranked
from handlers.vision.config import ImageClassificationConfig, ImageClassificationOptions
from handlers.vision.handler import ImageHandler, Seen
from handlers.vision.pixel_network import read_state


def _from_mapping(result: Mapping[str, float]) -> Sequence[Record]:
    """Make records of {label: score, ...}, likeliest first."""
    return [{"label": label, "score": score} for label, score in result.items()]


class ImageClassificationHandler(ImageHandler[ImageClassificationConfig]):
    """The network is a PixelClassifier: pixels -> logits. Labels are unique."""

    config_class = ImageClassificationConfig
    options_class = ImageClassificationOptions
    output_tensors = ranked(LABELS, _from_mapping)

    def load(self) -> Engine:
        engine = super().load()
        self.function = "softmax"
        if self.config.arch is None:
            # transformers takes seconds to import, for one setting of the model.
            said = json.loads((self.checkpoint_dir / "config.json").read_text(encoding="utf-8"))
            self.function = function_of(said.get("problem_type"), len(self.labels))
        return engine

    def network(self) -> tuple[torch.nn.Module, Sequence[str]]:
        # torchvision takes seconds to import, and a worker on OpenVINO does not need it.
        from handlers.vision.pixel_classifier import of_checkpoint, of_torchvision  # noqa: PLC0415

        arch, seen = self.config.arch, self.preprocessing
        if arch is None:
            network = of_checkpoint(self.checkpoint_dir, seen)
        else:
            network = of_torchvision(read_state(self.model_dir / "model.pt"), arch, len(self.labels), seen)
        dtype = dtype_for(self.device, self.config.precision)
        network.classifier.to(dtype, memory_format=torch.channels_last)
        return network, ["logits"]

    def split(self, outputs: Outputs, items: Sequence[Seen]) -> Sequence[Any]:
        """Turn `logits`, (B, classes), into {label: score} per item: its `top_k` likeliest, likeliest first."""
        probabilities = scores(outputs["logits"], self.function)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        return [
            {self.labels[index]: float(row[index]) for index in ranks[: item.options.top_k or self.config.top_k]}
            for row, ranks, item in zip(probabilities, order, items, strict=True)
        ]
