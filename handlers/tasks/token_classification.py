"""Token classification: a text becomes its entities, with their places in the text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Array, Json
from handlers.checkpoints import check_labels
from handlers.engines import Engine, Outputs
from handlers.errors import InvalidInput, ItemError, TextTooLong
from handlers.pipeline.values import Results
from handlers.precision.answers import Kind
from handlers.precision.comparisons import Floats, compare_rows
from handlers.probabilities import softmax
from handlers.protocol.requests import Payload
from handlers.text.config import TokenClassificationConfig, TokenClassificationOptions
from handlers.text.encoders import Head
from handlers.text.entities import Token, find_entities, merge_windows
from handlers.text.handler import ADVICE
from handlers.text.windowed import WindowsHandler
from handlers.text.windows import Window, Windowed, cut_window, split_encoding

Item = Windowed[TokenClassificationOptions]


def read_tokens(task: object, outputs: Outputs, items: Sequence[Item]) -> list[Floats]:  # noqa: ARG001
    rows = iter(softmax(outputs["logits"]))
    return [
        np.concatenate([next(rows)[window.first : window.first + window.tokens] for window in item.windows])
        for item in items
    ]


class TokenClassificationHandler(WindowsHandler[TokenClassificationConfig, Item]):
    """Answers are those of transformers' pipeline of that name; a long text runs in windows, as with its `stride`."""

    answer_kind = Kind("labels", 0.99, read_tokens, compare_rows)
    config_class = TokenClassificationConfig
    head = Head("AutoModelForTokenClassification", ("logits",))
    options_class = TokenClassificationOptions
    results = Results(view="entities")

    def load(self) -> Engine:
        engine = super().load()
        self.labels = check_labels(self.model_config.id2label, engine)
        self.unknown_id = self.tokenizer.unk_token_id
        # WordPiece marks the tokens that continue a word; for other models the spaces decide.
        model = self.tokenizer.backend_tokenizer.model
        self.marks_subwords = bool(getattr(model, "continuing_subword_prefix", None))
        return engine

    def decode(self, payload: Payload) -> Item:
        item = super().decode(payload)
        return Windowed(item.text, item.options)

    def fit(self, item: Item, ids: Sequence[int], type_ids: Sequence[int], encoding: Any) -> Item | ItemError:
        """Return an item with its windows, which are one if it is cut."""
        limit, side, most = self.limit(item.options), self.cut_side(item.options), self.config.max_windows
        try:
            if len(ids) > limit and side is not None:
                windows = [cut_window(encoding, limit, side)]
            else:
                windows = split_encoding(encoding, 0, limit, self.stride(item.options), most)
        except InvalidInput as error:
            return ItemError.of(error)
        if len(ids) > limit and not 0 < len(windows) <= most:
            message = f"text: {len(ids)} tokens; max_length is {limit}, and max_windows {most}.{ADVICE}"
            return ItemError.of(TextTooLong(message))
        # A text of white space has no window.
        return replace(item, ids=ids, encoding=encoding, windows=windows or [Window(ids, type_ids, 0, 0, 0)])

    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[object]:
        """Turn `logits`, (windows, T, labels), into a list of entities for each item, in the order of its text."""
        rows = iter(softmax(outputs["logits"]))
        return [self._entities(item, list(islice(rows, len(item.windows)))) for item in items]

    def _entities(self, item: Item, outputs: Sequence[NDArray[np.float32]]) -> list[Json]:
        encoding, join = item.encoding, self.tokenizer.convert_tokens_to_string
        rows = [*zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True)]
        first = encoding.sequence_ids.index(0) if item.windows[0].tokens else 0
        found = []
        for window, scores in zip(item.windows, outputs, strict=True):
            indices = range(first + window.offset, first + window.offset + window.tokens)
            tokens = self._tokens(item.text, indices, rows, scores[window.first :])
            found.append(find_entities(tokens, self.labels, item.options.aggregation, join, item.options.ignore_labels))
        return merge_windows(found)

    def _tokens(self, text: str, indices: range, rows: Sequence[Any], scores: Array) -> Iterator[Token]:
        """Yield a window's tokens without special ones."""
        for index, own in zip(indices, scores, strict=False):
            token_id, word, (start, end), is_special = rows[index]
            if is_special:
                continue
            source = text[start:end]
            if token_id == self.unknown_id:
                yield Token(source, own, index, start, end)
            elif self.marks_subwords:
                yield Token(word, own, index, start, end, is_subword=len(word) != len(source))
            else:
                is_subword = start > 0 and " " not in text[start - 1 : start + 1]
                yield Token(word, own, index, start, end, is_subword)
