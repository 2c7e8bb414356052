"""Image and text embedding: images and texts become vectors of one space."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from handlers.archive_files import GRAPH
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidBody, InvalidInput, ItemError, WorkTooLarge
from handlers.image_text.config import (
    TEXT_GRAPH,
    UNMASKED,
    ImageTextEmbeddingConfig,
    ImageTextEmbeddingOptions,
    read_family,
)
from handlers.image_text.engines import TowerEngines, TowerGraphs
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.values import Inputs, Results
from handlers.precision import answers
from handlers.protocol.output_tensors import vectors
from handlers.protocol.requests import Payload
from handlers.protocol.tensors import read_ranges
from handlers.text.handler import TextHandler
from handlers.text.sentence_files import Dimensions
from handlers.vision.handler import IMAGE_TENSORS, IMAGES, DecodedImage
from handlers.vision.images import decode_image, make_grey_jpeg
from handlers.vision.preprocessing import Preprocessing


class ImageTextEmbeddingHandler(TextHandler[ImageTextEmbeddingConfig, Any]):
    """Serves the files of an archive; an item is a text, as in `TextHandler`, or a DecodedImage:

    checkpoint/          configurations of the model and its texts; model.safetensors for torch
    preprocessing.json   resizing and normalisation of its images
    model.xml, .bin      ImageTower as an OpenVINO graph: pixels -> embeddings
    text.xml, .bin       TextTower as an OpenVINO graph, if the model accepts texts
    """

    answer_kind = answers.VECTORS
    config_class = ImageTextEmbeddingConfig
    options_class = ImageTextEmbeddingOptions
    inputs = Inputs(frozenset({"b64", "text"}), ("image/*", "text/plain"), dimensions=3, tensors=IMAGE_TENSORS)
    results = Results(view="vector", api="embeddings", only={"normalized": True})

    def load(self) -> Engine:
        self.tokenizer, model = read_family(self.archive.checkpoint_dir)
        self.preprocessing = Preprocessing.read(self.archive.model_dir)
        vision = getattr(model, "vision_config", model)
        width, height = self.preprocessing.size or (0, 0)
        self.patches = (width // vision.patch_size) * (height // vision.patch_size)
        size = getattr(model, "projection_dim", vision.hidden_size)
        self.dimensions = Dimensions.read(self.archive.checkpoint_dir, size, is_any=self.config.is_matryoshka)
        ranges = read_ranges(self.config.int8_ranges, size)
        self.results = replace(self.results, tensors=vectors("embedding", size), ranges=ranges)
        if self.tokenizer is not None:
            limit = min(model.text_config.max_position_embeddings, self.tokenizer.model_max_length)
            self.max_length = min(limit, self.config.max_length or limit)
            self.fixed_length = limit if model.model_type in UNMASKED else None
        else:
            self.inputs = IMAGES
        return self._load_engine()

    def _load_engine(self) -> Engine:
        config, has_text = self.config, self._has_text
        if not self.archive.uses_torch(self.config):
            graphs = [self.archive.model_dir / name for name in ((GRAPH, TEXT_GRAPH) if has_text else (GRAPH,))]
            settings: Any = {"precision": config.precision, "threads": config.threads}
            return TowerGraphs([OpenVinoEngine(graph, **settings) for graph in graphs])
        from handlers.engines.torch import TorchEngine, dtype_for  # noqa: PLC0415
        from handlers.image_text.towers import load_towers  # noqa: PLC0415

        towers, outputs = load_towers(self.archive.checkpoint_dir, self.preprocessing), ["embeddings"]
        image = towers.image.to(self.archive.device, dtype_for(self.archive.device, config.precision))
        engines = [TorchEngine(image, self.archive.device, ["pixels"], outputs, config.threads)]
        if towers.text is not None:
            # Both towers are parts of one model, which is on its device already.
            engines.append(
                TorchEngine(towers.text, self.archive.device, towers.text.input_names, outputs, config.threads)
            )
        return TowerEngines(engines)

    @property
    def _has_text(self) -> bool:
        return self.tokenizer is not None

    def sample(self) -> Any:
        """Return an image, and a text for the graph of texts."""
        image = Payload(make_grey_jpeg(self.preprocessing.least_side))
        return [image, *([Payload({"text": "a photograph"})] if self._has_text else ())]

    def check(self, options: Any) -> None:
        self.dimensions.check(options.dimensions)

    def decode(self, payload: Payload) -> Any:
        """Check a text, or {"text": ...}; or decode an image: bytes, {"b64": ...} or pixels."""
        value = payload.value
        fields = value if isinstance(value, Mapping) else {"text" if isinstance(value, str) else "b64": value}
        if not fields.keys() <= self.inputs.fields or len(fields) > 1:
            kinds = "a text or an image" if self._has_text else "an image"
            raise InvalidBody(f"An item of this model must be {kinds}.")
        if "text" in fields:
            return super().decode(payload)
        self.check(payload.options)
        image = fields["b64"]
        # A row of a tensor is a file; JSON has it in base64.
        image = image if isinstance(image, bytes | bytearray | np.ndarray) else {"b64": image}
        try:
            pixels, size = decode_image(image, self.config, self.preprocessing, payload.allowance)
        except WorkTooLarge:
            raise
        except InvalidInput as error:
            # In a list of texts and images, the message names the kind of the item.
            raise type(error)(f"image: {error}") from None
        return DecodedImage(pixels, payload.options, size)

    def prepare(self, items: Sequence[object]) -> Sequence[Any | ItemError]:
        texts = [item for item in items if not isinstance(item, DecodedImage)]
        prepared = iter(super().prepare(texts) if texts else ())
        return [item if isinstance(item, DecodedImage) else next(prepared) for item in items]

    def cost(self, item: Any) -> Cost:
        """Images share micro-batches with images, and texts with texts."""
        is_image = isinstance(item, DecodedImage)
        sent = self.patches if is_image else len(item.ids)
        return Cost(sent if is_image else self.padded_length(sent), group=is_image, sent=sent)

    def padded_length(self, tokens: int) -> int:
        return self.fixed_length or super().padded_length(tokens)

    def collate(self, items: Sequence[Any]) -> Arrays:
        """Stack images, `pixels`, (B, H, W, 3) uint8; or texts, see `TextHandler.stack`."""
        is_images = isinstance(items[0], DecodedImage)
        return {"pixels": np.stack([item.pixels for item in items])} if is_images else self.stack(items)

    def examples(self, items: Sequence[object]) -> Sequence[Arrays]:
        image, *texts = items
        return [self.collate([image]), *(super().examples(texts) if texts else ())]

    def split(self, outputs: Outputs, items: Sequence[Any]) -> Sequence[object]:
        """Return each item's row of `embeddings`, (B, D) float32."""
        return self.dimensions.cut(outputs["embeddings"], [item.options.dimensions for item in items])
