"""Object detection finds things in an image: what they are, how sure the model is, and the box around each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.archive_files import GRAPH
from handlers.base import BatchHandler
from handlers.config import parse_options
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.openvino import OpenVinoEngine
from handlers.probabilities import sigmoid
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.requests import Payload
from handlers.vision.config import ObjectDetectionConfig, ObjectDetectionOptions
from handlers.vision.images import Scene, grey_jpeg, stretched

CORNERS = ("xmin", "ymin", "xmax", "ymax")


class ObjectDetectionHandler(BatchHandler[ObjectDetectionConfig, Scene]):
    """Serves what the archive holds; answers are those of transformers' pipeline of the same name:

    checkpoint/           configurations of the model and of its images; model.safetensors for torch
    index_to_name.json    class index -> label
    model.xml, .bin       PixelDetector as an OpenVINO graph: pixels -> logits, boxes
    """

    config_class = ObjectDetectionConfig
    options_class = ObjectDetectionOptions
    inputs = frozenset({"b64"})
    item_dimensions = 3
    input_tensors: Mapping[str, TensorMetadata] = {"b64": TensorMetadata("image", shape=(-1, 1))}
    media_types = ("image/*",)

    def load(self) -> Engine:
        """See `BatchHandler.load`."""
        # PyTorch is imported in any case: TorchServe's base class brings it.
        from handlers.vision.pixel_detector import canvas, load_detector  # noqa: PLC0415

        names = json.loads((self.model_dir / "index_to_name.json").read_text(encoding="utf-8"))
        self.labels = [names[str(index)] for index in range(len(names))]
        self.canvas = canvas(self.checkpoint_dir)
        config = self.config
        if not self.uses_torch:
            return OpenVinoEngine(self.model_dir / GRAPH, precision=config.precision, threads=config.threads)
        from handlers.engines.torch import TorchEngine, dtype_for  # noqa: PLC0415

        detector = load_detector(self.checkpoint_dir).to(self.device, dtype_for(self.device, config.precision))
        return TorchEngine(detector, self.device, ["pixels"], ["logits", "boxes"], config.threads)

    def sample(self) -> Payload:
        """See `BatchHandler.sample`; a grey JPEG."""
        return Payload(grey_jpeg(max(self.canvas)))

    def decode(self, payload: Payload) -> Scene:
        """Stretch an image that came as bytes, {"b64": ...} or pixels, and read the options."""
        options = parse_options(ObjectDetectionOptions, payload.options)
        pixels, size = stretched(payload.value, self.config, self.canvas, payload.allowance)
        threshold = self.config.threshold if options.threshold is None else options.threshold
        return Scene(pixels, size, threshold, options.top_k or self.config.top_k)

    def collate(self, items: Sequence[Scene]) -> Arrays:
        """Stack the items: `pixels`, (B, H, W, 3) uint8."""
        return {"pixels": np.stack([item.pixels for item in items])}

    def split(self, outputs: Outputs, items: Sequence[Scene]) -> Sequence[Any]:
        """Turn `logits`, (B, Q, C), and `boxes`, (B, Q, 4), into boxes in pixels of each item's image, best first.

        As transformers' post_process_object_detection of RT-DETR: the Q best of all Q * C scores, a box for each.
        """
        count, queries, classes = outputs["logits"].shape
        scores = sigmoid(outputs["logits"]).reshape(count, -1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :queries]
        scores = np.take_along_axis(scores, best, axis=1)
        centres, halves = outputs["boxes"][..., :2], outputs["boxes"][..., 2:] / 2
        corners = np.concatenate([centres - halves, centres + halves], axis=2)
        corners = np.take_along_axis(corners, (best // classes)[..., None], axis=1)
        corners = (corners * np.array([2 * item.size for item in items])[:, None]).astype(int)
        rows = zip(items, best % classes, scores, corners.tolist(), strict=True)
        return [self._answer(*row) for row in rows]

    def _answer(
        self, item: Scene, labels: NDArray[Any], scores: NDArray[Any], corners: Sequence[Sequence[int]]
    ) -> list[dict[str, Any]]:
        count = int((scores > item.threshold).sum())
        count = count if item.top_k is None else min(count, item.top_k)
        found = zip(labels[:count].tolist(), scores[:count].tolist(), corners, strict=False)
        if self.config.answer == "torchserve":
            return [{self.labels[label]: corner, "score": score} for label, score, corner in found]
        return [
            {"label": self.labels[label], "score": score, "box": dict(zip(CORNERS, corner, strict=True))}
            for label, score, corner in found
        ]
