"""Token classification: a text becomes its entities, with their places in the text."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.checkpoints import check_labels
from handlers.engines import Engine, Outputs
from handlers.probabilities import softmax
from handlers.text.config import TokenClassificationConfig, TokenClassificationOptions
from handlers.text.encoders import Head
from handlers.text.entities import Token, find_entities
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text


class TokenClassificationHandler(TextHandler[TokenClassificationConfig, Text[TokenClassificationOptions]]):
    """Answers are those of transformers' pipeline of that name."""

    config_class = TokenClassificationConfig
    head = Head("AutoModelForTokenClassification", ("logits",))
    options_class = TokenClassificationOptions
    needs_places = True

    def load(self) -> Engine:
        engine = super().load()
        self.labels = check_labels(self.model_config.id2label, engine)
        self.unknown_id = self.tokenizer.unk_token_id
        # WordPiece marks the tokens that continue a word; for other models the spaces decide.
        model = self.tokenizer.backend_tokenizer.model
        self.marks_subwords = bool(getattr(model, "continuing_subword_prefix", None))
        return engine

    def split(self, outputs: Outputs, items: Sequence[Text[TokenClassificationOptions]]) -> Sequence[Any]:
        """Turn `logits`, (B, T, labels), into a list of entities for each item, in the order of its text."""
        scores = softmax(outputs["logits"])
        return [self._entities(item, rows) for item, rows in zip(items, scores, strict=True)]

    def _entities(self, item: Text[TokenClassificationOptions], scores: NDArray[np.float32]) -> list[dict[str, Any]]:
        return find_entities(
            self._tokens(item, scores),
            self.labels,
            item.options.aggregation,
            self.tokenizer.convert_tokens_to_string,
            self.config.ignore_labels,
        )

    def _tokens(self, item: Text[TokenClassificationOptions], scores: NDArray[np.float32]) -> Iterator[Token]:
        """Yield the text's tokens without special ones and padding."""
        encoding = item.encoding
        rows = zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True)
        for index, (token_id, word, (start, end), is_special) in enumerate(rows):
            if is_special:
                continue
            source = item.text[start:end]
            if token_id == self.unknown_id:
                yield Token(source, scores[index], index, start, end)
            elif self.marks_subwords:
                yield Token(word, scores[index], index, start, end, is_subword=len(word) != len(source))
            else:
                is_subword = start > 0 and " " not in item.text[start - 1 : start + 1]
                yield Token(word, scores[index], index, start, end, is_subword)
