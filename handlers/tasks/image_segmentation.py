"""Image segmentation says of each pixel of an image what it belongs to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from handlers.config import parse_options
from handlers.engines import Outputs
from handlers.engines.torch import dtype_for
from handlers.errors import ImageTooLarge
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.requests import Payload
from handlers.vision.class_maps import likeliest
from handlers.vision.config import ImageSegmentationConfig, ImageSegmentationOptions
from handlers.vision.handler import ImageHandler, Seen
from handlers.vision.images import opened
from handlers.vision.masks import png
from handlers.vision.pixel_segmenter import load_segmenter

# Pixels that count as a token: a square of 16 x 16.
PIXELS_PER_TOKEN = 256


class ImageSegmentationHandler(ImageHandler[ImageSegmentationConfig]):
    """The network is a PixelSegmenter, of checkpoint/ or of model.pt."""

    config_class = ImageSegmentationConfig
    options_class = ImageSegmentationOptions

    def network(self) -> tuple[torch.nn.Module, Sequence[str]]:
        arch = self.config.arch
        weights = self.checkpoint_dir if arch is None else self.model_dir / "model.pt"
        segmenter = load_segmenter(weights, arch, len(self.labels), self.preprocessing)
        segmenter.network.to(dtype_for(self.device, self.config.precision))
        return segmenter, segmenter.output_names

    def decode(self, payload: Payload) -> Seen:
        """See `ImageHandler.decode`; an image whose map, or what the network sees of it, is too large is refused."""
        options = parse_options(ImageSegmentationOptions, payload.options)
        image, size = opened(payload.value, self.config, payload.allowance, self.preprocessing.least)
        if size[0] * size[1] > self.config.max_map_pixels:
            limit = self.config.max_map_pixels
            raise ImageTooLarge(f"The image's map has {size[0]} x {size[1]} pixels; max_map_pixels is {limit}.")
        width, height = self.preprocessing.resized(*image.size)
        if self.preprocessing.size is None and width * height > self.config.max_seen_pixels:
            limit = self.config.max_seen_pixels
            raise ImageTooLarge(
                f"An image of {size[0]} x {size[1]} is resized to {width} x {height}; max_seen_pixels is {limit}."
            )
        return Seen(self.preprocessing.pixels(image), options, size)

    def cost(self, item: Seen) -> Cost:
        """Images of one shape share a micro-batch, which takes as long as it has pixels."""
        height, width, _ = item.pixels.shape
        return Cost(max(1, height * width // PIXELS_PER_TOKEN), (height, width))

    def split(self, outputs: Outputs, items: Sequence[Seen]) -> Sequence[Any]:
        """Turn the network's outputs into what each item is answered.

        Args:
            outputs: `classes` and `probabilities`, (B, H, W) each; or `map_logits`, (B, classes, h, w).
            items: their images.
        """
        if "map_logits" in outputs:
            is_seen = self.config.answer == "torchserve"
            sizes = [item.pixels.shape[1::-1] if is_seen else item.size for item in items]
            return [
                self._answer(*likeliest(*each), item)
                for *each, item in zip(outputs["map_logits"], sizes, items, strict=True)
            ]
        # PyTorch's engine answers in float32.
        classes = outputs["classes"].astype(np.uint8, copy=False)
        return list(map(self._answer, classes, outputs["probabilities"], items))

    def _answer(self, classes: NDArray[np.uint8], probabilities: NDArray[Any], item: Seen) -> Any:
        labels = np.asarray(Image.fromarray(classes).resize(item.size, Image.Resampling.NEAREST))
        masks = item.options.masks or self.config.masks
        if self.config.answer == "torchserve":
            return np.stack([classes.astype(np.float32), probabilities], axis=-1)
        flat = classes.ravel()
        counts = np.bincount(flat)
        sums = np.bincount(flat, probabilities.ravel())
        found = [int(value) for value in np.argsort(-counts, kind="stable") if counts[value]]
        segments = [{"label": self.labels[value], "score": float(sums[value] / counts[value])} for value in found]
        if masks == "map":
            values = [{**segment, "value": value} for segment, value in zip(segments, found, strict=True)]
            return {"segments": values, "map": png(labels)}
        whole = np.uint8(255)
        return [
            {**segment, "mask": png((labels == value) * whole)} for segment, value in zip(segments, found, strict=True)
        ]
