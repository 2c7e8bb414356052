"""Spells texts, a character every 20 ms: a model that generates, at a pace that a test can follow.

codes of characters (B, T) -> the same, step by step: a character of each text in each
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from handlers.base import BatchHandler
from handlers.config import HandlerConfig
from handlers.engines import Arrays, Engine, Listener, Outputs, Progress
from handlers.errors import UnknownOption
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.requests import Payload
from handlers.text.pieces import Detokenizer, TextPieces

STEP_S = 0.02
# The engine fails in the step that comes to this character.
FAILURE = "#"


class SpellingTask(BatchHandler[HandlerConfig, str]):
    """The task, and its engine too."""

    config_class = HandlerConfig
    inputs = frozenset({"text"})
    is_streamable = True
    decodes_in_threads = False

    description, input_names = "spelling", ("codes",)

    def load(self) -> Engine:
        """See `BatchHandler.load`."""
        self.detokenizer = Detokenizer(
            decode=lambda codes: "".join(map(chr, codes)),
            tokens=lambda codes: [chr(code) for code in codes],
            special_ids=frozenset(),
            has_words=False,
        )
        return self

    def sample(self) -> Payload:
        """See `BatchHandler.sample`."""
        return Payload({"text": "a"})

    def decode(self, payload: Payload) -> str:
        """See `BatchHandler.decode`."""
        if payload.options.keys() - {"stream"}:
            raise UnknownOption("Known options: stream.")
        value = payload.value
        return str(value["text"]) if isinstance(value, Mapping) else bytes(value).decode()  # type: ignore[arg-type]

    def cost(self, item: str) -> Cost:
        """See `BatchHandler.cost`."""
        return Cost()

    def collate(self, items: Sequence[str]) -> Arrays:
        """See `BatchHandler.collate`."""
        codes = np.zeros((len(items), max(map(len, items))), np.int64)
        for row, item in zip(codes, items, strict=True):
            row[: len(item)] = [ord(letter) for letter in item]
        return {"codes": codes}

    def run(self, inputs: Arrays) -> Outputs:
        """See `handlers.engines.Engine`."""
        return self.run_progressively(inputs, lambda _: False)

    def run_progressively(self, inputs: Arrays, progress: Listener) -> Outputs:
        """See `handlers.engines.Progressive`."""
        going = {index: row[row > 0].tolist() for index, row in enumerate(inputs["codes"])}
        for step in range(inputs["codes"].shape[1]):
            if not going:
                break
            time.sleep(STEP_S)
            if any(codes[step] == ord(FAILURE) for codes in going.values()):
                raise LookupError("a bug")
            for index, codes in list(going.items()):
                is_last = step == len(codes) - 1
                if progress(Progress(index, (codes[step],), is_last)) or is_last:
                    del going[index]
        return dict(inputs)

    def pieces(self, item: str) -> TextPieces:
        """See `BatchHandler.pieces`."""
        return TextPieces(self.detokenizer, _spelled)

    def forward_progressively(self, inputs: Arrays, items: Sequence[str], progress: Listener) -> Outputs:
        """See `BatchHandler.forward_progressively`."""
        return self.run_progressively(inputs, progress)

    def split(self, outputs: Outputs, items: Sequence[str]) -> list[Any]:
        """See `BatchHandler.split`."""
        return [_spelled("".join(map(chr, row[row > 0]))) for row in outputs["codes"]]


def _spelled(text: str) -> dict[str, str]:
    return {"spelled": text}
