"""Image segmentation says of each pixel of an image what it belongs to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from handlers.archive_files import GRAPH
from handlers.base import BatchHandler
from handlers.config import parse_options
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import ImageTooLarge
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.headers import header
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import OneItem
from handlers.vision.config import ImageSegmentationConfig, ImageSegmentationOptions
from handlers.vision.images import View, grey_jpeg, opened
from handlers.vision.masks import NPY, LabelFile, png, rle
from handlers.vision.pixel_segmenter import Geometry

# Pixels that count as a token: a square of 16 x 16.
PIXELS_PER_TOKEN = 256


class ImageSegmentationHandler(BatchHandler[ImageSegmentationConfig, View]):
    """Serves what the archive holds:

    index_to_name.json    class index -> label
    model.xml, .bin       PixelSegmenter as an OpenVINO graph: pixels -> classes, probabilities
    checkpoint/           of transformers: configurations of the model and of its images; model.safetensors for torch
    model.pt              of torchvision: state dict, for torch
    """

    config_class = ImageSegmentationConfig
    options_class = ImageSegmentationOptions
    inputs = frozenset({"b64"})
    item_dimensions = 3
    input_tensors: Mapping[str, TensorMetadata] = {"b64": TensorMetadata("image", shape=(-1, 1))}
    media_types = ("image/*",)

    def load(self) -> Engine:
        """See `BatchHandler.load`."""
        names = json.loads((self.model_dir / "index_to_name.json").read_text(encoding="utf-8"))
        self.labels = [names[str(index)] for index in range(len(names))]
        config = self.config
        self.geometry = Geometry.of(config, self.model_dir if config.arch else self.checkpoint_dir)
        if not self.uses_torch:
            return OpenVinoEngine(self.model_dir / GRAPH, precision=config.precision, threads=config.threads)
        from handlers.engines.torch import TorchEngine, dtype_for  # noqa: PLC0415
        from handlers.vision.pixel_segmenter import load_segmenter  # noqa: PLC0415

        weights = self.checkpoint_dir if config.arch is None else self.model_dir / "model.pt"
        segmenter = load_segmenter(weights, config.arch, len(self.labels), self.geometry)
        segmenter.network.to(dtype_for(self.device, config.precision))
        outputs = ["classes", "probabilities"]
        return TorchEngine(segmenter.to(self.device), self.device, ["pixels"], outputs, config.threads)

    def sample(self) -> Payload:
        """See `BatchHandler.sample`; a grey JPEG."""
        return Payload(grey_jpeg(self.geometry.shorter))

    def unpack(self, row: Mapping[str, Any], headers: Mapping[str, Any]) -> Request:
        """See `BatchHandler.unpack`; `Accept: application/x-npy` asks for the map of one image alone."""
        request = super().unpack(row, headers)
        if NPY not in (header(headers, "Accept") or "").lower() or not isinstance(request.form, OneItem):
            return request
        payloads = tuple(
            replace(each, options={**each.options, "masks": "labels"}) if isinstance(each, Payload) else each
            for each in request.payloads
        )
        return replace(request, payloads=payloads, form=LabelFile())

    def decode(self, payload: Payload) -> View:
        """Resize an image that came as bytes, {"b64": ...} or pixels, and read the options."""
        options = parse_options(ImageSegmentationOptions, payload.options)
        image, size = opened(payload.value, self.config, payload.allowance, self.geometry.shorter)
        if size[0] * size[1] > self.config.max_map_pixels:
            limit = self.config.max_map_pixels
            raise ImageTooLarge(f"The image's map has {size[0]} x {size[1]} pixels; max_map_pixels is {limit}.")
        pixels = np.asarray(image.resize(self.geometry.seen(*size), Image.Resampling.BILINEAR))
        return View(pixels, size, options.masks or self.config.masks)

    def cost(self, item: View) -> Cost:
        """See `BatchHandler.cost`; images of one shape share a micro-batch, which takes as long as it has pixels."""
        height, width, _ = item.pixels.shape
        return Cost(max(1, height * width // PIXELS_PER_TOKEN), (height, width))

    def collate(self, items: Sequence[View]) -> Arrays:
        """Stack the items: `pixels`, (B, H, W, 3) uint8."""
        return {"pixels": np.stack([item.pixels for item in items])}

    def split(self, outputs: Outputs, items: Sequence[View]) -> Sequence[Any]:
        """Turn `classes` and `probabilities`, (B, H, W) each, into what each item is answered."""
        # PyTorch's engine answers in float32.
        classes = outputs["classes"].astype(np.uint8, copy=False)
        return list(map(self._answer, classes, outputs["probabilities"], items))

    def _answer(self, classes: NDArray[np.uint8], probabilities: NDArray[Any], item: View) -> Any:
        labels = np.asarray(Image.fromarray(classes).resize(item.size, Image.Resampling.NEAREST))
        if item.masks == "labels":
            return labels
        if self.config.answer == "torchserve":
            return np.stack([classes.astype(np.float32), probabilities], axis=-1)
        flat = classes.ravel()
        counts = np.bincount(flat)
        sums = np.bincount(flat, probabilities.ravel())
        found = [int(value) for value in np.argsort(-counts, kind="stable") if counts[value]]
        segments = [{"label": self.labels[value], "score": float(sums[value] / counts[value])} for value in found]
        if item.masks == "map":
            values = [{**segment, "value": value} for segment, value in zip(segments, found, strict=True)]
            return {"segments": values, "map": png(labels)}
        draw = rle if item.masks == "rle" else lambda mask: png(np.where(mask, np.uint8(255), np.uint8(0)))
        return [{**segment, "mask": draw(labels == value)} for segment, value in zip(segments, found, strict=True)]
