"""A task whose engine generates at the pace of a test: it spells a text, a character of each text in every step."""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from handlers.base import BatchHandler
from handlers.config import HandlerConfig
from handlers.engines import Arrays, Engine, Listener, Outputs
from handlers.errors import InvalidOption
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.requests import Payload
from tests.handlers.batching.gated import SCHEDULING, TIMEOUT_S, state, wait_for
from tests.handlers.serving import context

# The engine fails in the step that comes to this character.
FAILURE = "#"


class Speller:
    """An engine: (B, T) codes of characters, 0 where a text has none any more -> the same.

    Attributes:
        batches: the texts of each micro-batch that it was given.
        steps: how many steps were run.
    """

    description, input_names = "speller", ("codes",)

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.steps = 0
        self._allowed: float = np.inf
        self._changed = threading.Condition()

    def hold(self) -> None:
        """Run no further step."""
        self._allow(0)

    def step(self, count: int = 1) -> None:
        """Allow so many more."""
        with self._changed:
            self._allow(self._allowed + count)

    def go(self) -> None:
        """Run freely."""
        self._allow(np.inf)

    def run(self, inputs: Arrays, ended: Listener | None = None) -> Outputs:
        codes = inputs["codes"].copy()
        texts = ["".join(map(chr, row[row > 0])) for row in codes]
        self.batches.append(texts)
        going = dict(enumerate(texts))
        for step in range(codes.shape[1]):
            with self._changed:
                assert self._changed.wait_for(lambda: self._allowed > 0, TIMEOUT_S)
                self._allowed -= 1
            self.steps += 1
            if any(text[step] == FAILURE for text in going.values()):
                raise LookupError("a bug")
            for index, text in list(going.items()):
                if step == len(text) - 1:
                    del going[index]
                    if ended is not None:
                        ended(index, {"codes": codes[index : index + 1, : len(text)]})
        return {"codes": codes}

    def _allow(self, steps: float) -> None:
        with self._changed:
            self._allowed = steps
            self._changed.notify_all()


class SpellingHandler(BatchHandler[HandlerConfig, str]):
    """Spells texts."""

    config_class = HandlerConfig
    inputs = frozenset({"text"})
    decodes_in_threads = False

    def load(self) -> Engine:
        self.speller = Speller()
        return self.speller

    def sample(self) -> Payload:
        return Payload({"text": "sample"})

    def decode(self, payload: Payload) -> str:
        if payload.options:
            raise InvalidOption(f"{', '.join(sorted(payload.options))}: not known.")
        value = payload.value
        return str(value["text"]) if isinstance(value, Mapping) else bytes(value).decode()  # type: ignore[arg-type]

    def cost(self, item: str) -> Cost:
        # All are of a length, so that those that wait share a micro-batch.
        return Cost()

    def collate(self, items: Sequence[str]) -> Arrays:
        codes = np.zeros((len(items), max(map(len, items))), np.int64)
        for row, item in zip(codes, items, strict=True):
            row[: len(item)] = [ord(letter) for letter in item]
        return {"codes": codes}

    def forward_reporting(self, inputs: Arrays, items: Sequence[str], ended: Listener) -> Outputs:
        return self.speller.run(inputs, ended)

    def split(self, outputs: Outputs, items: Sequence[str]) -> list[Any]:
        return [{"spelled": "".join(map(chr, row[row > 0]))} for row in outputs["codes"]]

    def wait_until_idle(self) -> None:
        """Wait until the worker has nothing to do; the last answer may leave before its micro-batch has ended."""
        wait_for(lambda: state(self)[:3] == (0, 0, 0))

    def wait(self, *, waiting: int = 0) -> None:
        """Wait until a micro-batch runs, and so many items wait at least."""
        wait_for(lambda: state(self)[2] == 1 and state(self)[1] >= waiting)


def started(model_dir: Path, **scheduling: Any) -> SpellingHandler:
    """Start a handler in adaptive mode, whose engine runs freely."""
    handler = SpellingHandler()
    settings = {"max_batch_items": 8, "max_request_items": 10, "scheduling": {**SCHEDULING, **scheduling}}
    handler.worker_context = context(model_dir, settings, batch_size=64)
    handler.worker_context.model_yaml_config["continuousBatching"] = True
    # A micro-batch costs far more than what is in it, so all that wait share one.
    with patch("handlers.batching.trial.measure", lambda *_: [(1, 0.02), (1000, 0.021)]):
        handler.initialize(handler.worker_context)
    handler.speller.batches.clear()
    return handler


def asking(text: str, **options: Any) -> bytes:
    """Write a body; TorchServe marks it as JSON in a header of the field."""
    return json.dumps({"text": text, **options}).encode()
