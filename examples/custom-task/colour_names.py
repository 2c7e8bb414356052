"""Name a colour: "#d2691e" in, the nearest name of the palette out. This file is the whole task."""

import csv
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from handlers.base import BatchHandler
from handlers.config import HandlerConfig
from handlers.engines import Arrays, Outputs
from handlers.engines.function import FunctionEngine
from handlers.errors import CorruptInput
from handlers.protocol.requests import Payload
from handlers.text.inputs import read_text

Colour = NDArray[np.float32]  # red, green, blue


class ColourNames(BatchHandler[HandlerConfig, Colour]):
    config_class = HandlerConfig
    inputs = frozenset({"colour"})
    staged_files = ("palette.csv",)

    def load(self) -> FunctionEngine:
        with (self.archive.model_dir / "palette.csv").open(encoding="utf-8") as file:
            self.names, *channels = zip(*csv.reader(file), strict=True)
        self.palette = np.array(channels, np.float32).T
        return FunctionEngine(self.nearest, ["colours"])

    def nearest(self, colours: Colour) -> Outputs:  # (B, 3) -> (B,), once for a micro-batch
        return {"nearest": np.linalg.norm(colours[:, None] - self.palette, axis=-1).argmin(axis=1)}

    def sample(self) -> Payload:
        return Payload("#d2691e")

    def decode(self, payload: Payload) -> Colour:
        value = payload.value["colour"] if isinstance(payload.value, Mapping) else payload.value
        text = read_text(value, "colour", max_characters=7)
        if not re.fullmatch("#[0-9a-fA-F]{6}", text):
            raise CorruptInput("colour: must be #rrggbb.")
        return np.frombuffer(bytes.fromhex(text[1:]), np.uint8).astype(np.float32)

    def collate(self, items: Sequence[Colour]) -> Arrays:
        return {"colours": np.stack(items)}

    def split(self, outputs: Outputs, items: Sequence[Colour]) -> Sequence[dict[str, str]]:
        return [{"name": self.names[index]} for index, _ in zip(outputs["nearest"], items, strict=True)]
