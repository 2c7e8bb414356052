"""Object detection finds things in an image: what they are, how sure the model is, and the box around each."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from handlers.config import parse_options
from handlers.engines import Outputs
from handlers.engines.torch import dtype_for
from handlers.probabilities import sigmoid, softmax
from handlers.protocol.requests import Payload
from handlers.vision.config import ObjectDetectionConfig, ObjectDetectionOptions
from handlers.vision.handler import ImageHandler, Seen
from handlers.vision.images import grey_jpeg, stretched
from handlers.vision.pixel_detector import canvas, load_detector
from handlers.vision.pixel_ssd import RULES, read_ssd, suppressed

CORNERS = ("xmin", "ymin", "xmax", "ymax")


class ObjectDetectionHandler(ImageHandler[ObjectDetectionConfig]):
    """The network is a PixelDetector of checkpoint/, or a PixelSsd: pixels -> logits, boxes.

    Answers have the form of transformers' pipeline of the same name.
    """

    config_class = ObjectDetectionConfig
    options_class = ObjectDetectionOptions

    def read_geometry(self) -> None:
        self.rules = None if self.config.arch is None else RULES[self.config.arch]
        self.canvas = canvas(self.checkpoint_dir) if self.rules is None else (self.rules.side, self.rules.side)

    def network(self) -> tuple[torch.nn.Module, Sequence[str]]:
        dtype = dtype_for(self.device, self.config.precision)
        if self.config.arch is None:
            return load_detector(self.checkpoint_dir).to(dtype), ["logits", "boxes"]
        detector = read_ssd(self.model_dir / "model.pt", self.config.arch)
        detector.backbone.to(dtype)
        detector.head.to(dtype)
        return detector, ["logits", "boxes"]

    def sample(self) -> Payload:
        """A grey JPEG."""
        return Payload(grey_jpeg(max(self.canvas)))

    def decode(self, payload: Payload) -> Seen:
        """Stretch an image that came as bytes, {"b64": ...} or pixels, and read the options."""
        options = parse_options(ObjectDetectionOptions, payload.options)
        is_smooth = self.rules is None
        pixels, size = stretched(payload.value, self.config, self.canvas, payload.allowance, is_smooth=is_smooth)
        return Seen(pixels, options, size)

    def _threshold(self, item: Seen) -> float:
        least: float | None = item.options.threshold
        return self.config.threshold if least is None else least

    def split(self, outputs: Outputs, items: Sequence[Seen]) -> Sequence[Any]:
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

    def _suppressed(self, outputs: Outputs, items: Sequence[Seen], rules: Any) -> Iterable[Sequence[NDArray[Any]]]:
        """As torchvision's SSD; the first class stands for none."""
        scores = softmax(outputs["logits"])[..., 1:]
        for item, boxes, rows in zip(items, outputs["boxes"], scores, strict=True):
            at, classes = suppressed(boxes, rows, self._threshold(item), rules)
            yield at, classes + 1, rows[at, classes]

    def _answer(
        self, item: Seen, boxes: NDArray[Any], labels: NDArray[Any], scores: NDArray[Any]
    ) -> list[dict[str, Any]]:
        top_k = item.options.top_k or self.config.top_k
        count = int((scores > self._threshold(item)).sum())
        count = count if top_k is None else min(count, top_k)
        found = zip(labels[:count].tolist(), scores[:count].tolist(), boxes.astype(int).tolist(), strict=False)
        if self.config.answer == "torchserve":
            return [{self.labels[label]: corner, "score": score} for label, score, corner in found]
        return [
            {"label": self.labels[label], "score": score, "box": dict(zip(CORNERS, corner, strict=True))}
            for label, score, corner in found
        ]
