"""Image classification with any torchvision classifier: an image in, label -> probability out."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torchvision

from handlers.batch import BatchHandler
from handlers.config import ImageClassificationConfig, ImageClassificationOptions, parse_options
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.openvino import OpenVinoEngine
from handlers.engines.torch import TorchEngine, dtype_for
from handlers.errors import CorruptInput, InvalidConfig, UnknownShape
from handlers.images import Geometry, Picture, PixelClassifier, decode_image, grey_jpeg
from handlers.rows import Payload


class ImageClassificationHandler(BatchHandler[ImageClassificationConfig, Picture]):
    """Serves what the archive holds:

    index_to_name.json   class index -> label, unique
    model.xml, .bin      PixelClassifier as an OpenVINO graph: pixels -> logits
    model.pt             state dict of the classifier alone
    """

    config_class = ImageClassificationConfig
    inputs = frozenset({"b64"})

    def load(self) -> Engine:
        """See `BatchHandler.load`."""
        names = json.loads((self.model_dir / "index_to_name.json").read_text(encoding="utf-8"))
        self.labels = [names[str(index)] for index in range(len(names))]
        config = self.config
        self.geometry = Geometry(config.resize_size, config.crop_size, config.max_pixels, config.scaled_decode)
        if not self.uses_torch:
            return OpenVinoEngine(self.model_dir / "model.xml", precision=config.precision, threads=config.threads)
        weights = self.model_dir / "model.pt"
        if not weights.is_file():
            raise InvalidConfig("engine: torch needs model.pt, which this archive lacks")
        classifier = torchvision.models.get_model(config.arch, weights=None, num_classes=len(self.labels))
        classifier.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True, mmap=True))
        classifier = classifier.to(dtype_for(self.device, config.precision), memory_format=torch.channels_last)
        module = PixelClassifier(classifier, config.mean, config.std).to(self.device)
        return TorchEngine(module, self.device, ["pixels"], ["logits"], config.threads)

    def sample(self) -> Payload:
        """A grey JPEG."""
        return Payload(grey_jpeg(self.config.resize_size))

    def decode(self, payload: Payload) -> Picture:
        """Bytes, or {"b64": ...}, to the model's square; option `top_k`."""
        options = parse_options(ImageClassificationOptions, payload.options)
        body = payload.value
        if isinstance(body, Mapping):
            body = _from_base64(body["b64"])
        elif isinstance(body, str):
            raise UnknownShape('An image comes as bytes or as {"b64": ...}, not as text.')
        return Picture(decode_image(body, self.geometry), options.top_k or self.config.top_k)

    def collate(self, items: Sequence[Picture]) -> Arrays:
        """pixels: (B, S, S, 3) uint8."""
        return {"pixels": np.stack([item.pixels for item in items])}

    def split(self, outputs: Outputs, items: Sequence[Picture]) -> Sequence[Any]:
        """logits (B, classes) -> per item {label: probability}, the `top_k` likeliest, likeliest first."""
        logits = outputs["logits"]
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        return [
            {self.labels[index]: float(row[index]) for index in ranks[: item.top_k]}
            for row, ranks, item in zip(probabilities, order, items, strict=True)
        ]


def _from_base64(text: Any) -> bytes:
    if not isinstance(text, str):
        raise UnknownShape('"b64" must be a string.')
    try:
        # `base64 FILE` wraps its lines.
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise CorruptInput('"b64" is not valid base64.') from None
