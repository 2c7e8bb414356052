"""Image segmentation: an image becomes a class for each of its pixels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from handlers.engines import Outputs
from handlers.errors import ImageTooLarge
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.values import Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import Array, compare_maps
from handlers.protocol.requests import Payload
from handlers.protocol.responses import Piped
from handlers.vision.class_maps import find_classes
from handlers.vision.config import ImageSegmentationConfig, ImageSegmentationOptions
from handlers.vision.encoding import encode_map
from handlers.vision.handler import DecodedImage, ImageHandler
from handlers.vision.images import open_image

PIXELS_PER_TOKEN = 256  # pixels of a token: a square of 16 x 16


def read_maps(task: Any, outputs: Outputs, items: Sequence[Any]) -> list[Array]:  # noqa: ARG001
    return list(outputs["classes"] if "classes" in outputs else outputs["map_logits"].argmax(1))


class ImageSegmentationHandler(ImageHandler[ImageSegmentationConfig]):
    """The network is a PixelSegmenter or a PixelSegformer, of checkpoint/ or of model.pt."""

    answer_kind = Kind("miou", 0.98, read_maps, compare_maps)
    config_class = ImageSegmentationConfig
    options_class = ImageSegmentationOptions
    results = Results(piped=Piped(options={"masks": "png"}), view="segments")

    def load_network(self) -> tuple[Any, Sequence[str]]:
        from handlers.engines.torch import dtype_for  # noqa: PLC0415
        from handlers.vision.pixel_segmenter import load_segmenter  # noqa: PLC0415

        arch = self.config.arch
        weights = self.archive.checkpoint_dir if arch is None else self.archive.model_dir / "model.pt"
        segmenter = load_segmenter(weights, arch, len(self.labels), self.preprocessing)
        segmenter.network.to(dtype_for(self.archive.device, self.config.precision))
        return segmenter, segmenter.output_names

    def decode(self, payload: Payload) -> DecodedImage:
        """Decode an image; reject it if its map, or its resized image, is too large."""
        image, size = open_image(payload.value, self.config, payload.allowance, self.preprocessing.least_side)
        if size[0] * size[1] > self.config.max_map_pixels:
            limit = self.config.max_map_pixels
            raise ImageTooLarge(f"The image's map has {size[0]} x {size[1]} pixels; max_map_pixels is {limit}.")
        width, height = self.preprocessing.resized_size(*image.size)
        if self.preprocessing.size is None and width * height > self.config.max_seen_pixels:
            limit = self.config.max_seen_pixels
            raise ImageTooLarge(
                f"An image of {size[0]} x {size[1]} is resized to {width} x {height}; max_seen_pixels is {limit}."
            )
        return DecodedImage(self.preprocessing.fit(image), payload.options, size)

    def cost(self, item: DecodedImage) -> Cost:
        """Images of one shape share a micro-batch, whose duration grows with its pixels."""
        height, width, _ = item.pixels.shape
        return Cost(max(1, height * width // PIXELS_PER_TOKEN), (height, width))

    def split(self, outputs: Outputs, items: Sequence[DecodedImage]) -> Sequence[Any]:
        """Turn `classes` and `probabilities`, (B, H, W), or `map_logits`, (B, classes, h, w), into answers."""
        if "map_logits" in outputs:
            is_input_size = self.config.answer == "torchserve"
            sizes = [item.pixels.shape[1::-1] if is_input_size else item.size for item in items]
            return [
                self._answer(*find_classes(*each), item)
                for *each, item in zip(outputs["map_logits"], sizes, items, strict=True)
            ]
        # A CUDA graph returns float32.
        classes = outputs["classes"].astype(np.uint8, copy=False)
        return list(map(self._answer, classes, outputs["probabilities"], items))

    def _answer(self, classes: NDArray[np.uint8], probabilities: NDArray[Any], item: DecodedImage) -> Any:
        labels = np.asarray(Image.fromarray(classes).resize(item.size, Image.Resampling.NEAREST))
        if self.config.answer == "torchserve":
            return np.stack([classes.astype(np.float32), probabilities], axis=-1)
        flat = classes.ravel()
        counts = np.bincount(flat)
        sums = np.bincount(flat, probabilities.ravel())
        found = [int(value) for value in np.argsort(-counts, kind="stable") if counts[value]]
        segments = [{"label": self.labels[value], "score": float(sums[value] / counts[value])} for value in found]
        if (item.options.masks or self.config.masks) == "map":
            values = [{**segment, "value": value} for segment, value in zip(segments, found, strict=True)]
            return {"segments": values, "map": encode_map(labels)}
        masks = [encode_map((labels == value) * np.uint8(255)) for value in found]
        return [{**segment, "mask": mask} for segment, mask in zip(segments, masks, strict=True)]
