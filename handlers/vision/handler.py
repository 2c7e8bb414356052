"""Serve what the tasks on images share.

payload -> decode: the pixels that the model sees -> collate -> a network behind pixels
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from handlers.archive_files import GRAPH
from handlers.base import BatchHandler
from handlers.checkpoints import checked_labels
from handlers.config import parse_options
from handlers.engines import Arrays, Engine
from handlers.engines.openvino import OpenVinoEngine
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.requests import Payload
from handlers.vision.config import PixelsConfig
from handlers.vision.images import decode_image, grey_jpeg
from handlers.vision.preprocessing import Preprocessing

Config = TypeVar("Config", bound=PixelsConfig)

# The tensor of an image: the bytes of a file. Pixels are one of item_dimensions.
IMAGE_TENSORS: Mapping[str, TensorMetadata] = {"b64": TensorMetadata("image", shape=(-1, 1))}


@dataclass(frozen=True, slots=True)
class Seen:
    """One decoded image.

    Attributes:
        pixels: (H, W, 3) uint8, RGB: what the model sees.
        options: those of its client.
        size: the image's own width and height.
    """

    pixels: NDArray[np.uint8]
    options: Any
    size: tuple[int, int] = (0, 0)


class ImageHandler(BatchHandler[Config, Seen], Generic[Config]):
    """Serves what the archive holds:

    index_to_name.json   class index -> label
    preprocessing.json   how an image becomes pixels, see Preprocessing
    model.xml, .bin      a network behind pixels as an OpenVINO graph
    model.pt             of torchvision: state dict, for torch
    checkpoint/          of transformers: config.json, and model.safetensors for torch
    """

    inputs = frozenset({"b64"})
    item_dimensions = 3
    input_tensors = IMAGE_TENSORS
    media_types = ("image/*",)

    def load(self) -> Engine:
        names = json.loads((self.model_dir / "index_to_name.json").read_text(encoding="utf-8"))
        self.labels = [names[str(index)] for index in range(len(names))]
        self.preprocessing = Preprocessing.read(self.model_dir)
        config = self.config
        if not self.uses_torch:
            graph = OpenVinoEngine(self.model_dir / GRAPH, precision=config.precision, threads=config.threads)
            checked_labels(dict(enumerate(self.labels)), graph)
            return graph
        from handlers.engines.torch import TorchEngine  # noqa: PLC0415

        network, outputs = self.network()
        return TorchEngine(network.to(self.device), self.device, ["pixels"], outputs, config.threads)

    @abstractmethod
    def network(self) -> tuple[torch.nn.Module, Sequence[str]]:
        """Load the network for torch, in the configured precision, and name its outputs."""

    def sample(self) -> Payload:
        """See `BatchHandler.sample`; a grey JPEG."""
        return Payload(grey_jpeg(self.preprocessing.least))

    def decode(self, payload: Payload) -> Seen:
        """Make pixels of an image that came as bytes, {"b64": ...} or pixels, and read the options."""
        options = parse_options(self.options_class, payload.options) if payload.options else self._no_options
        pixels, size = decode_image(payload.value, self.config, self.preprocessing, payload.allowance)
        return Seen(pixels, options, size)

    @cached_property
    def _no_options(self) -> Any:
        return parse_options(self.options_class, {})

    def collate(self, items: Sequence[Seen]) -> Arrays:
        """Stack the items: `pixels`, (B, H, W, 3) uint8."""
        return {"pixels": np.stack([item.pixels for item in items])}
