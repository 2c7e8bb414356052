"""Image classification with any torchvision classifier turns an image into probabilities of labels."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from handlers.archive_files import GRAPH
from handlers.base import BatchHandler
from handlers.config import parse_options
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.openvino import OpenVinoEngine
from handlers.engines.torch import TorchEngine
from handlers.errors import InvalidConfig
from handlers.probabilities import softmax
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.output_tensors import LABELS, Ranked, Record
from handlers.protocol.requests import Payload
from handlers.vision.config import ImageClassificationConfig, ImageClassificationOptions
from handlers.vision.images import Picture, decode_image, grey_jpeg


def _from_mapping(result: Mapping[str, float]) -> Sequence[Record]:
    """Make records of {label: score, ...}, likeliest first."""
    return [{"label": label, "score": score} for label, score in result.items()]


class ImageClassificationHandler(BatchHandler[ImageClassificationConfig, Picture]):
    """Serves what the archive holds:

    index_to_name.json   class index -> label, unique
    model.xml, .bin      PixelClassifier as an OpenVINO graph: pixels -> logits
    model.pt             state dict of the classifier alone
    """

    config_class = ImageClassificationConfig
    options_class = ImageClassificationOptions
    inputs = frozenset({"b64"})
    item_dimensions = 3
    input_tensors: Mapping[str, TensorMetadata] = {"b64": TensorMetadata("image", shape=(-1, 1))}
    media_types = ("image/*",)
    output_tensors = Ranked(LABELS, _from_mapping)

    def load(self) -> Engine:
        """See `BatchHandler.load`."""
        names = json.loads((self.model_dir / "index_to_name.json").read_text(encoding="utf-8"))
        self.labels = [names[str(index)] for index in range(len(names))]
        config = self.config
        if not self.uses_torch:
            return OpenVinoEngine(self.model_dir / GRAPH, precision=config.precision, threads=config.threads)
        weights = self.model_dir / "model.pt"
        if not weights.is_file():
            raise InvalidConfig("engine: torch needs model.pt, which this archive lacks")
        # torchvision takes seconds to import, and a worker on OpenVINO does not need it.
        from handlers.vision.pixel_classifier import load_classifier  # noqa: PLC0415

        module = load_classifier(weights, config, len(self.labels), self.device)
        return TorchEngine(module, self.device, ["pixels"], ["logits"], config.threads)

    def sample(self) -> Payload:
        """See `BatchHandler.sample`; a grey JPEG."""
        return Payload(grey_jpeg(self.config.resize_size))

    def decode(self, payload: Payload) -> Picture:
        """Cut the model's square out of bytes, {"b64": ...} or pixels, and read the option `top_k`."""
        options = parse_options(ImageClassificationOptions, payload.options)
        pixels = decode_image(payload.value, self.config, payload.allowance)
        return Picture(pixels, options.top_k or self.config.top_k)

    def collate(self, items: Sequence[Picture]) -> Arrays:
        """Stack the items: `pixels`, (B, S, S, 3) uint8."""
        return {"pixels": np.stack([item.pixels for item in items])}

    def split(self, outputs: Outputs, items: Sequence[Picture]) -> Sequence[Any]:
        """Turn `logits`, (B, classes), into {label: probability} per item: its `top_k` likeliest, likeliest first."""
        probabilities = softmax(outputs["logits"])
        order = np.argsort(-probabilities, axis=1, kind="stable")
        return [
            {self.labels[index]: float(row[index]) for index in ranks[: item.top_k]}
            for row, ranks, item in zip(probabilities, order, items, strict=True)
        ]
