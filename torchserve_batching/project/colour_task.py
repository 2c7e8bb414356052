"""Name a colour: "#d2691e" in, the nearest names of a palette out."""

import csv
from collections.abc import Mapping, Sequence

import numpy as np
from hex_colours import parse_hex

from handlers.base import BatchHandler
from handlers.config import Answers, HandlerConfig
from handlers.engines import Arrays, Outputs
from handlers.engines.function import FunctionEngine
from handlers.errors import CorruptInput
from handlers.protocol.requests import Payload
from handlers.text.inputs import read_text

Item = tuple[list[int], int]  # red, green, blue; the number of names


class Settings(HandlerConfig):
    palette: str = "palette.csv"


class Options:
    top_k: Answers = 1


class ColourNames(BatchHandler[Settings, Item]):
    config_class = Settings
    options_class = Options
    inputs = frozenset({"colour"})
    staged_files = ("*.csv",)

    def load(self) -> FunctionEngine:
        with (self.archive.model_dir / self.config.palette).open(encoding="utf-8") as file:
            self.names, *channels = zip(*csv.reader(file), strict=True)
        self.palette = np.array(channels, np.float32).T
        return FunctionEngine(self.measure, ["colours"])

    def measure(self, colours: np.ndarray) -> Outputs:  # (B, 3) -> (B, names), once for a micro-batch
        return {"distances": np.linalg.norm(colours[:, None] - self.palette, axis=-1)}

    def sample(self) -> Payload:
        return Payload("#d2691e")

    def decode(self, payload: Payload) -> Item:
        value = payload.value["colour"] if isinstance(payload.value, Mapping) else payload.value
        try:
            return parse_hex(read_text(value, "colour", max_characters=7)), payload.options.top_k
        except ValueError as error:
            raise CorruptInput(f"colour: {error}.") from None

    def collate(self, items: Sequence[Item]) -> Arrays:
        return {"colours": np.array([colour for colour, _ in items], np.float32)}

    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[dict[str, list[str]]]:
        nearest = outputs["distances"].argsort(axis=1)
        return [{"names": [self.names[i] for i in row[:top_k]]} for row, (_, top_k) in zip(nearest, items, strict=True)]
