"""Object detection finds things in an image: what they are, how sure the model is, and the box around each."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.archive_files import GRAPH
from handlers.base import BatchHandler
from handlers.config import parse_options
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.openvino import OpenVinoEngine
from handlers.probabilities import sigmoid, softmax
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.requests import Payload
from handlers.vision.config import ObjectDetectionConfig, ObjectDetectionOptions
from handlers.vision.images import Scene, grey_jpeg, stretched

CORNERS = ("xmin", "ymin", "xmax", "ymax")


class ObjectDetectionHandler(BatchHandler[ObjectDetectionConfig, Scene]):
    """Serves what the archive holds; answers have the form of transformers' pipeline of the same name:

    checkpoint/           of transformers: configurations of the model and of its images; model.safetensors for torch
    model.pt              of torchvision: state dict, for torch
    index_to_name.json    class index -> label
    model.xml, .bin       PixelDetector or PixelSsd as an OpenVINO graph: pixels -> logits, boxes
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
        from handlers.vision.pixel_ssd import RULES, read_ssd  # noqa: PLC0415

        names = json.loads((self.model_dir / "index_to_name.json").read_text(encoding="utf-8"))
        self.labels = [names[str(index)] for index in range(len(names))]
        config = self.config
        self.rules = None if config.arch is None else RULES[config.arch]
        self.canvas = canvas(self.checkpoint_dir) if self.rules is None else (self.rules.side, self.rules.side)
        if not self.uses_torch:
            return OpenVinoEngine(self.model_dir / GRAPH, precision=config.precision, threads=config.threads)
        from handlers.engines.torch import TorchEngine, dtype_for  # noqa: PLC0415

        dtype = dtype_for(self.device, config.precision)
        if config.arch is None:
            detector: Any = load_detector(self.checkpoint_dir).to(self.device, dtype)
        else:
            detector = read_ssd(self.model_dir / "model.pt", config.arch).to(self.device)
            detector.backbone.to(dtype)
            detector.head.to(dtype)
        return TorchEngine(detector, self.device, ["pixels"], ["logits", "boxes"], config.threads)

    def sample(self) -> Payload:
        """See `BatchHandler.sample`; a grey JPEG."""
        return Payload(grey_jpeg(max(self.canvas)))

    def decode(self, payload: Payload) -> Scene:
        """Stretch an image that came as bytes, {"b64": ...} or pixels, and read the options."""
        options = parse_options(ObjectDetectionOptions, payload.options)
        is_smooth = self.rules is None
        pixels, size = stretched(payload.value, self.config, self.canvas, payload.allowance, is_smooth=is_smooth)
        threshold = self.config.threshold if options.threshold is None else options.threshold
        return Scene(pixels, size, threshold, options.top_k or self.config.top_k)

    def collate(self, items: Sequence[Scene]) -> Arrays:
        """Stack the items: `pixels`, (B, H, W, 3) uint8."""
        return {"pixels": np.stack([item.pixels for item in items])}

    def split(self, outputs: Outputs, items: Sequence[Scene]) -> Sequence[Any]:
        """Turn `logits`, (B, Q, C), and `boxes`, (B, Q, 4), into boxes in pixels of each item's image, best first."""
        chosen = self._best(outputs["logits"]) if self.rules is None else self._suppressed(outputs, items, self.rules)
        rows = zip(items, outputs["boxes"], chosen, strict=True)
        return [self._answer(item, boxes[at] * (2 * item.size), *labelled) for item, boxes, (at, *labelled) in rows]

    def _best(self, logits: NDArray[Any]) -> Iterable[Sequence[NDArray[Any]]]:
        """As transformers' post_process_object_detection of RT-DETR: the Q best of all Q * C scores, a box for each."""
        count, queries, classes = logits.shape
        scores = sigmoid(logits).reshape(count, -1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :queries]
        return zip(best // classes, best % classes, np.take_along_axis(scores, best, axis=1), strict=True)

    def _suppressed(self, outputs: Outputs, items: Sequence[Scene], rules: Any) -> Iterable[Sequence[NDArray[Any]]]:
        """As torchvision's SSD; the first class stands for none."""
        from handlers.vision.pixel_ssd import suppressed  # noqa: PLC0415

        scores = softmax(outputs["logits"])[..., 1:]
        for item, boxes, rows in zip(items, outputs["boxes"], scores, strict=True):
            at, classes = suppressed(boxes, rows, item.threshold, rules)
            yield at, classes + 1, rows[at, classes]

    def _answer(
        self, item: Scene, boxes: NDArray[Any], labels: NDArray[Any], scores: NDArray[Any]
    ) -> list[dict[str, Any]]:
        count = int((scores > item.threshold).sum())
        count = count if item.top_k is None else min(count, item.top_k)
        found = zip(labels[:count].tolist(), scores[:count].tolist(), boxes.astype(int).tolist(), strict=False)
        if self.config.answer == "torchserve":
            return [{self.labels[label]: corner, "score": score} for label, score, corner in found]
        return [
            {"label": self.labels[label], "score": score, "box": dict(zip(CORNERS, corner, strict=True))}
            for label, score, corner in found
        ]
