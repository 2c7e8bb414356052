"""Object detection: an image becomes the objects in it, each with label, score and box."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from handlers.aliases import Array, Json
from handlers.engines import Engine, Outputs
from handlers.pipeline.values import Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import Boxes, compare_boxes
from handlers.probabilities import sigmoid, softmax
from handlers.vision.boxes import RULES, SsdRules, select_boxes
from handlers.vision.config import ObjectDetectionConfig, ObjectDetectionOptions
from handlers.vision.handler import DecodedImage, ImageHandler

# Of comparisons: the least score of a box, and the side of an image in pixels, large since boxes are whole pixels.
FOUND, SIDE = 0.25, 10_000
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_boxes(task: Any, outputs: Outputs, items: Sequence[DecodedImage]) -> list[Boxes]:
    answers = task.split(outputs, [replace(item, size=(SIDE, SIDE)) for item in items])
    return [
        Boxes(
            np.array([each["label"] for each in found], object),
            np.array([each["score"] for each in found]),
            np.array([[*each["box"].values()] for each in found], np.float64).reshape(-1, 4),
        )
        for found in answers
    ]


class ObjectDetectionHandler(ImageHandler[ObjectDetectionConfig]):
    """The network is a PixelDetector or a PixelSsd: pixels -> logits, boxes. Answers are transformers' pipeline's."""

    answer_kind = Kind("map", 0.98, read_boxes, compare_boxes, {"threshold": FOUND, "answer": "boxes"}, Boxes)
    config_class = ObjectDetectionConfig
    options_class = ObjectDetectionOptions
    results = Results(view="boxes")

    def load(self) -> Engine:
        self.rules = None if self.config.arch is None else RULES[self.config.arch]
        return super().load()

    def load_network(self) -> tuple[Any, Sequence[str]]:
        from handlers.engines.torch import dtype_for  # noqa: PLC0415
        from handlers.vision.pixel_detector import load_detector, read_ssd  # noqa: PLC0415

        dtype = dtype_for(self.archive.device, self.config.precision)
        if self.config.arch is None:
            found = load_detector(self.archive.checkpoint_dir, self.preprocessing)
            found.detector.to(dtype)
            return found, ["logits", "boxes"]
        detector = read_ssd(self.archive.model_dir / "model.pt", self.config.arch)
        detector.backbone.to(dtype)
        detector.head.to(dtype)
        return detector, ["logits", "boxes"]

    def _threshold(self, item: DecodedImage) -> float:
        least: float | None = item.options.threshold
        return self.config.threshold if least is None else least

    def split(self, outputs: Outputs, items: Sequence[DecodedImage]) -> Sequence[object]:
        """Turn `logits`, (B, Q, C), and `boxes`, (B, Q, 4), into boxes in pixels of each item's image, best first."""
        chosen = self._best(outputs["logits"]) if self.rules is None else self._select(outputs, items, self.rules)
        rows = zip(items, outputs["boxes"], chosen, strict=True)
        return [self._answer(item, boxes[at] * (2 * item.size), *labelled) for item, boxes, (at, *labelled) in rows]

    def _best(self, logits: Array) -> Iterable[Sequence[Array]]:
        """Rank as transformers' post_process_object_detection of RT-DETR: the Q best of all Q * C scores."""
        count, queries, classes = logits.shape
        scores = sigmoid(logits).reshape(count, -1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :queries]
        return zip(best // classes, best % classes, np.take_along_axis(scores, best, axis=1), strict=True)

    def _select(self, outputs: Outputs, items: Sequence[DecodedImage], rules: SsdRules) -> Iterable[Sequence[Array]]:
        """Select as torchvision's SSD; the first class means no object."""
        scores = softmax(outputs["logits"])[..., 1:]
        for item, boxes, rows in zip(items, outputs["boxes"], scores, strict=True):
            at, classes = select_boxes(boxes, rows, self._threshold(item), rules)
            yield at, classes + 1, rows[at, classes]

    def _answer(self, item: DecodedImage, boxes: Array, labels: Array, scores: Array) -> list[Json]:
        top_k = item.options.top_k or self.config.top_k
        count = int((scores > self._threshold(item)).sum())
        count = count if top_k is None else min(count, top_k)
        found = zip(labels[:count].tolist(), scores[:count].tolist(), boxes.astype(int).tolist(), strict=False)
        if self.config.answer == "torchserve":
            # TorchServe's own has fractions of pixels.
            exact = zip(labels[:count].tolist(), scores[:count].tolist(), boxes.tolist(), strict=False)
            return [{self.labels[label]: corner, "score": score} for label, score, corner in exact]
        return [
            {"label": self.labels[label], "score": score, "box": dict(zip(CORNERS, corner, strict=True))}
            for label, score, corner in found
        ]
