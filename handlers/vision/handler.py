"""The handler that the tasks on images share.

payload -> decode: pixels -> collate -> a network behind pixels
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from handlers.archive_files import GRAPH
from handlers.base import BatchHandler
from handlers.checkpoints import check_labels
from handlers.engines import Arrays, Engine
from handlers.engines.openvino import OpenVinoEngine
from handlers.pipeline.values import Inputs
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.requests import Payload
from handlers.vision.config import PixelsConfig
from handlers.vision.images import decode_image, make_grey_jpeg
from handlers.vision.preprocessing import Pixels, Preprocessing

Config = TypeVar("Config", bound=PixelsConfig)

# The tensor of an image that is a file; a tensor of pixels has the dimensions.
IMAGE_TENSORS: Mapping[str, TensorMetadata] = {"b64": TensorMetadata("image", shape=(-1, 1))}
IMAGES = Inputs(frozenset({"b64"}), ("image/*",), dimensions=3, tensors=IMAGE_TENSORS)


@dataclass(frozen=True, slots=True)
class DecodedImage:
    pixels: Pixels  # (H, W, 3), RGB: the model's input
    options: Any  # of its client
    size: tuple[int, int] = (0, 0)  # width and height that it was sent with


class ImageHandler(BatchHandler[Config, DecodedImage], Generic[Config]):
    """Serves labels, preprocessing.json, and model.xml for OpenVINO or model.pt and checkpoint/ for torch."""

    inputs = IMAGES

    def load(self) -> Engine:
        names = json.loads((self.archive.model_dir / "index_to_name.json").read_text(encoding="utf-8"))
        self.labels = [names[str(index)] for index in range(len(names))]
        self.preprocessing = Preprocessing.read(self.archive.model_dir)
        config = self.config
        if not self.archive.uses_torch(self.config):
            graph = OpenVinoEngine(self.archive.model_dir / GRAPH, precision=config.precision, threads=config.threads)
            check_labels(dict(enumerate(self.labels)), graph)
            return graph
        from handlers.engines.torch import TorchEngine  # noqa: PLC0415

        network, outputs = self.load_network()
        return TorchEngine(network.to(self.archive.device), self.archive.device, ["pixels"], outputs, config.threads)

    @abstractmethod
    def load_network(self) -> tuple[Any, Sequence[str]]:
        """Load the network for torch, in the configured precision; return it and the names of its outputs."""

    def sample(self) -> Payload:
        return Payload(make_grey_jpeg(self.preprocessing.least_side))

    def decode(self, payload: Payload) -> DecodedImage:
        """Decode an image, bytes, {"b64": ...} or pixels."""
        pixels, size = decode_image(payload.value, self.config, self.preprocessing, payload.allowance)
        return DecodedImage(pixels, payload.options, size)

    def collate(self, items: Sequence[DecodedImage]) -> Arrays:
        return {"pixels": np.stack([item.pixels for item in items])}
