"""Tokenization: a text becomes the token ids of a model, for clients that run the model elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from handlers.base import BatchHandler
from handlers.checkpoints import load_tokenizer
from handlers.engines import Arrays, Outputs
from handlers.engines.function import FunctionEngine
from handlers.errors import InvalidInput, InvalidOption, ItemError
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.values import TEXTS, Results
from handlers.protocol.output_tensors import sequences
from handlers.protocol.requests import Payload
from handlers.text.config import TokenizationConfig, TokenizationOptions
from handlers.text.encoders import PREPARED, find_source_limit, read_tokenizer
from handlers.text.inputs import Text, add_tokens, pad_rows, read_payload
from handlers.text.windows import cut_tokens

Item = Text[TokenizationOptions]


class TokenizationHandler(BatchHandler[TokenizationConfig, Item]):
    """Serves the tokenizer of a Hugging Face checkpoint; the archive has no model.

    text -> decode -> checked text -> prepare: one call of the tokenizer
         -> collate -> (B, T) ids and mask -> split: each item's own, or as long as `padding: max_length` demands
    """

    config_class = TokenizationConfig
    options_class = TokenizationOptions
    inputs = TEXTS

    def load(self) -> FunctionEngine:
        config = self.config
        folder, is_trusted = self.archive.checkpoint_dir, config.trust_remote_code
        if (folder / PREPARED).is_file():
            self.tokenizer, _ = read_tokenizer(folder, trust_remote_code=is_trusted)
        else:
            self.tokenizer = load_tokenizer(folder, trust_remote_code=is_trusted)
        self.max_length = find_source_limit(self.archive.checkpoint_dir, config.max_length)
        self.config = replace(config, max_length=self.max_length)  # the option's default
        self.pad_id = self.tokenizer.pad_token_id or 0
        self.results = Results(sequences({"input_ids": self.pad_id, "attention_mask": 0}))
        return FunctionEngine(dict, ["input_ids", "attention_mask"])

    def sample(self) -> Payload:
        return Payload("What went before decides what comes next.")

    def decode(self, payload: Payload) -> Item:
        """Check a text, or {"text": ...}."""
        config, options = self.config, payload.options
        if options.max_length > self.max_length:
            raise InvalidOption(f"max_length: {options.max_length}; at most {self.max_length}.")
        text = read_payload(payload, config.max_characters)
        if payload.allowance:
            payload.allowance.take("characters", len(text), config.max_request_characters)
        return Text(text, options)

    def prepare(self, items: Sequence[Item]) -> Sequence[Item | ItemError]:
        """Tokenise in one call; reject a text that is too long, or cut it if its options allow that."""
        encodings = self.tokenizer([item.text for item in items], return_token_type_ids=True)
        places = encodings.encodings or [None] * len(items)
        return [self._fit(*row) for row in zip(items, encodings["input_ids"], places, strict=True)]

    def _fit(self, item: Item, ids: Sequence[int], encoding: Any) -> Item | ItemError:
        limit = item.options.max_length
        try:
            if len(ids) > limit and item.options.truncation:
                ids, _ = cut_tokens(self.tokenizer, (item.text, None), encoding, limit, self.tokenizer.truncation_side)
        except InvalidInput as error:
            return ItemError.of(error)
        return add_tokens(item, ids, limit)

    def cost(self, item: Item) -> Cost:
        """The item's length is that of its answer in tokens."""
        return Cost(_count_tokens(item))

    def collate(self, items: Sequence[Item]) -> Arrays:
        """Pad the items to the longest: `input_ids` and `attention_mask`, (B, T) int64, right-padded."""
        return pad_rows([item.ids for item in items], max(map(_count_tokens, items)), self.pad_id)

    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[object]:
        """Cut `input_ids` and `attention_mask`, (B, T), to (t,) for each item."""
        rows = zip(outputs["input_ids"], outputs["attention_mask"], map(_count_tokens, items), strict=True)
        return [{"input_ids": ids[:length], "attention_mask": mask[:length]} for ids, mask, length in rows]


def _count_tokens(item: Item) -> int:
    """Count the tokens of the item's answer, padding included."""
    return item.options.max_length if item.options.padding == "max_length" else len(item.ids)
