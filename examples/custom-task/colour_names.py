"""Names a colour: "#d2691e" in, the nearest names of the palette out. This file is the whole task."""

import csv
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from handlers.base import BatchHandler
from handlers.config import SETTINGS, Answers, HandlerConfig, parse_options
from handlers.engines import Arrays, Outputs
from handlers.engines.function import FunctionEngine
from handlers.errors import CorruptInput
from handlers.protocol.requests import Payload
from handlers.text.inputs import read_text

Colour = tuple[NDArray[np.float32], int]  # red, green, blue; how many names are wanted


class ColourNames(BatchHandler[HandlerConfig, Colour]):
    @dataclass(frozen=True, kw_only=True, config=SETTINGS)
    class Options:  # a second class stands inside the first: TorchServe takes the only one of a file
        top_k: Answers = 1

    config_class = HandlerConfig
    options_class = Options
    inputs = frozenset({"colour"})
    staged_files = ("palette.csv",)

    def load(self) -> FunctionEngine:
        with (self.model_dir / "palette.csv").open(encoding="utf-8") as file:
            self.names, *channels = zip(*csv.reader(file), strict=True)
        self.palette = np.array(channels, np.float32).T
        return FunctionEngine(self.measure, ["colours"])

    def measure(self, colours: NDArray[np.float32]) -> Outputs:  # (B, 3) -> (B, names): once for a whole micro-batch
        return {"distances": np.linalg.norm(colours[:, None] - self.palette, axis=-1)}

    def sample(self) -> Payload:
        return Payload("#d2691e")

    def decode(self, payload: Payload) -> Colour:
        options = parse_options(self.Options, payload.options)
        value = payload.value["colour"] if isinstance(payload.value, Mapping) else payload.value
        text = read_text(value, "colour", max_characters=7)
        if not re.fullmatch("#[0-9a-fA-F]{6}", text):
            raise CorruptInput("colour: must be #rrggbb.")
        return np.frombuffer(bytes.fromhex(text[1:]), np.uint8).astype(np.float32), options.top_k

    def collate(self, items: Sequence[Colour]) -> Arrays:
        return {"colours": np.stack([colour for colour, _ in items])}

    def split(self, outputs: Outputs, items: Sequence[Colour]) -> Sequence[Any]:
        rows = zip(outputs["distances"], items, strict=True)
        return [[self.names[index] for index in np.argsort(row, kind="stable")[:top_k]] for row, (_, top_k) in rows]
