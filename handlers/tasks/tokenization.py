"""Tokenization turns a text into the token ids that a model takes, for clients that run the model elsewhere."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.base import BatchHandler
from handlers.checkpoints import load_tokenizer
from handlers.config import parse_options
from handlers.engines import Arrays, Outputs
from handlers.engines.function import FunctionEngine
from handlers.errors import InvalidOption, ItemError
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.output_tensors import padded
from handlers.protocol.requests import Payload
from handlers.text.config import TokenizationConfig, TokenizationOptions
from handlers.text.encoders import source_limit
from handlers.text.inputs import Text, padded_rows, text_of, tokenised

Source = Text[TokenizationOptions]


class TokenizationHandler(BatchHandler[TokenizationConfig, Source]):
    """Serves the tokenizer of a Hugging Face checkpoint; there is no model behind it.

    text -> decode -> checked text -> prepare: one call of the tokenizer for each set of options
         -> collate -> (B, T) ids and mask -> split: each item's own, or as long as `padding: max_length` says
    """

    config_class = TokenizationConfig
    options_class = TokenizationOptions
    inputs = frozenset({"text"})
    media_types = ("text/plain",)
    # Checking a text takes microseconds; tokenising is one call that brings threads of its own.
    decodes_in_threads = False

    def load(self) -> FunctionEngine:
        config = self.config
        self.tokenizer = load_tokenizer(self.checkpoint_dir, trust_remote_code=config.trust_remote_code)
        self.tokenizer_lock = threading.Lock()
        self.max_length = source_limit(self.checkpoint_dir, config.max_length)
        self.pad_id = self.tokenizer.pad_token_id or 0
        self.output_tensors = padded({"input_ids": self.pad_id, "attention_mask": 0})
        return FunctionEngine(_as_they_are, ["input_ids", "attention_mask"])

    def sample(self) -> Payload:
        """A sentence."""
        return Payload("What went before decides what comes next.")

    def decode(self, payload: Payload) -> Source:
        """Check a text, or {"text": ...}, and complete its options by the configuration's."""
        config = self.config
        defaults = {"padding": config.padding, "truncation": config.truncation, "max_length": self.max_length}
        options = parse_options(TokenizationOptions, {**defaults, **payload.options})
        if options.max_length > self.max_length:
            raise InvalidOption(f"max_length: {options.max_length}; at most {self.max_length}.")
        text = text_of(payload, config.max_characters)
        if payload.allowance:
            payload.allowance.take("characters", len(text), config.max_request_characters)
        return Text(text, options)

    def prepare(self, items: Sequence[Source]) -> Sequence[Source | ItemError]:
        """Tokenise in one call for each length that texts are cut to; one that is too long is refused."""
        cuts: dict[int | None, list[int]] = defaultdict(list)
        for index, item in enumerate(items):
            cuts[item.options.max_length if item.options.truncation else None].append(index)
        outcomes: list[Source | ItemError] = list(items)
        for length, indices in cuts.items():
            # The length is the tokenizer's state, and in adaptive mode several threads prepare items.
            with self.tokenizer_lock:
                encodings = self.tokenizer(
                    [items[index].text for index in indices], truncation=length is not None, max_length=length
                )
            for index, ids in zip(indices, encodings["input_ids"], strict=True):
                outcomes[index] = tokenised(items[index], ids, items[index].options.max_length)
        return outcomes

    def cost(self, item: Source) -> Cost:
        """The item's length is that of its answer in tokens."""
        return Cost(_length(item))

    def collate(self, items: Sequence[Source]) -> Arrays:
        """Pad the items to the longest: `input_ids` and `attention_mask`, (B, T) int64, right-padded."""
        return padded_rows([item.ids for item in items], max(map(_length, items)), self.pad_id)

    def split(self, outputs: Outputs, items: Sequence[Source]) -> Sequence[Any]:
        """Cut `input_ids` and `attention_mask`, (B, T), into {"input_ids": (t,), "attention_mask": (t,)} per item."""
        rows = zip(outputs["input_ids"], outputs["attention_mask"], map(_length, items), strict=True)
        return [{"input_ids": ids[:length], "attention_mask": mask[:length]} for ids, mask, length in rows]


def _length(item: Source) -> int:
    """Tokens of the item's answer, padding included."""
    return item.options.max_length if item.options.padding == "max_length" else len(item.ids)


def _as_they_are(input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Outputs:
    return {"input_ids": input_ids, "attention_mask": attention_mask}
