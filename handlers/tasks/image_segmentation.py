"""Image segmentation: an image becomes a class for each of its pixels, found from logits that are fewer than these."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from handlers.aliases import Array
from handlers.engines import Outputs
from handlers.errors import ImageTooLarge
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.values import Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import Floats, compare_maps
from handlers.probabilities import softmax
from handlers.protocol.requests import Payload
from handlers.protocol.responses import Piped
from handlers.vision.config import ImageSegmentationConfig, ImageSegmentationOptions
from handlers.vision.handler import DecodedImage, ImageHandler
from handlers.vision.images import encode_map, open_image
from handlers.vision.preprocessing import find_neighbours

PIXELS_PER_TOKEN = 256  # pixels of a token: a square of 16 x 16


def read_maps(task: object, outputs: Outputs, items: Sequence[object]) -> list[Floats]:  # noqa: ARG001
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

    def split(self, outputs: Outputs, items: Sequence[DecodedImage]) -> Sequence[object]:
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

    def _answer(self, classes: NDArray[np.uint8], probabilities: Array, item: DecodedImage) -> Any:
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


# Logits that are enlarged at a time, 16 MB: those of a whole photograph and 150 classes are gigabytes.
MOST_ENLARGED = 4_000_000
HALF = 0.5  # share of the second neighbour from which it is the nearer one


def find_classes(logits: NDArray[np.float32], size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Enlarge (classes, h, w) logits; return each pixel's likeliest class and the nearest logits' probability."""
    values = np.ascontiguousarray(logits.transpose(1, 2, 0))
    best = values.argmax(2).astype(np.uint8)
    (top, bottom, down), (left, right, across) = map(find_neighbours, values.shape[:2], size[::-1])
    classes = best[np.ix_(top, left)]
    # If four neighbours have one likeliest class, it is the likeliest everywhere between them.
    is_open = np.zeros(classes.shape, bool)
    for rows, columns in ((top, right), (bottom, left), (bottom, right)):
        is_open |= best[np.ix_(rows, columns)] != classes
    nearest = np.ix_(np.where(down < HALF, top, bottom), np.where(across < HALF, left, right))
    probabilities = softmax(values).max(2)[nearest]
    found = np.nonzero(is_open)
    for start in range(0, len(found[0]), MOST_ENLARGED // values.shape[2]):
        at = tuple(each[start : start + MOST_ENLARGED // values.shape[2]] for each in found)
        y, x = at
        shares = across[x, None]
        upper = values[top[y], left[x]] * (1 - shares) + values[top[y], right[x]] * shares
        lower = values[bottom[y], left[x]] * (1 - shares) + values[bottom[y], right[x]] * shares
        enlarged = softmax(upper * (1 - down[y, None]) + lower * down[y, None])
        classes[at], probabilities[at] = enlarged.argmax(1), enlarged.max(1)
    return classes, probabilities
