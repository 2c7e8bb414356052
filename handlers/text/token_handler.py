"""The handler that the tasks share whose answers are weights of words, or a vector for each token.

text -> decode: its prompt in front -> tokens -> the model -> parts of answers: words_of, vectors_of
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken

from handlers.aliases import Json
from handlers.engines import Arrays, Engine, Outputs
from handlers.errors import InvalidConfig, ItemError
from handlers.protocol.requests import Payload
from handlers.text.config import TextConfig
from handlers.text.handler import TextHandler
from handlers.text.inputs import Options, Text
from handlers.text.sentence_files import SENTENCE_CONFIG, Prompts, read_json
from handlers.text.token_modules import LATE_HEAD, QUERY_WEIGHTS, Late, choose_words, gather_words, read_late

Config = TypeVar("Config", bound=TextConfig)


@dataclass(frozen=True, slots=True)
class TokenText(Text[Options]):
    """One item; the last of its tokens may be an expansion."""

    unseen: int = 0  # the last tokens, which no token attends to


Item = TypeVar("Item", bound=TokenText[Any])


class TokensHandler(TextHandler[Config, Item], Generic[Config, Item]):
    """Prompts precede texts as in sentence-transformers."""

    needs_places = True  # padding is on the right

    def load(self) -> Engine:
        engine = super().load()
        self.prompts = Prompts.read(self.archive.checkpoint_dir)
        self.late = Late(is_mean=True)
        self.skipped_ids: list[int] = []
        self.query_weights: NDArray[np.float32] | None = None
        self.most_words: int | None = read_json(self.archive.checkpoint_dir / SENTENCE_CONFIG).get("max_active_dims")
        return engine

    def read_query_weights(self) -> None:
        """Read the static weights of a query's words, if the model has them instead of a run."""
        if (weights := self.archive.checkpoint_dir / QUERY_WEIGHTS).is_file():
            self.query_weights = np.load(weights)
            places = self.tokenizer.backend_tokenizer.encode("a").sequence_ids
            self.frame = places.index(0), places[::-1].index(0)  # tokens that the tokenizer adds on both sides

    def is_static(self, item: Item) -> bool:
        return self.query_weights is not None and item.options.input_type == "query"

    def weigh(self, items: Sequence[Item]) -> Outputs:
        """Return the static weights of each text's words, (B, V), without the tokens that the tokenizer adds."""
        static = cast(NDArray[np.float32], self.query_weights)
        rows = np.zeros((len(items), len(static)), np.float32)
        for row, item in zip(rows, items, strict=True):
            own = [*item.ids[self.frame[0] : len(item.ids) - self.frame[1]]]
            row[own] = static[own]
        return {"weights": rows}

    def read_late(self) -> None:
        """Read the settings of a model of late interaction; its markers become tokens as in its library."""
        if (self.archive.checkpoint_dir / LATE_HEAD).is_file():
            return
        late = read_late(self.archive.checkpoint_dir)
        texts = {**self.prompts.texts}
        for kind, prefix in late.prefixes.items():
            texts[kind] = prefix + texts.get(kind, "").removeprefix(prefix)
        self.prompts = replace(self.prompts, texts=texts)
        backend = self.tokenizer.backend_tokenizer
        for prefix in filter(str.strip, late.prefixes.values()):
            known = [each for each in (prefix, prefix.split(None, 1)[0]) if backend.token_to_id(each) is not None]
            if known and backend.encode(known[0], add_special_tokens=False).tokens != known[:1]:
                backend.add_special_tokens([AddedToken(known[0], normalized=False, special=True)])
        if late.expansion and not late.expansion.get("attend") and self.config.padding == "exact":
            raise InvalidConfig("padding: exact is not supported for a model that expands queries; use longest")
        most = max([*late.lengths.values(), late.expansion.get("length", 0)])
        if most > self.max_length:
            raise InvalidConfig(
                f"max_length: {self.max_length} is less than the {most} tokens of the model's own files"
            )
        self.late = late
        self.skipped_ids = [backend.token_to_id(each) for each in late.skipped if backend.token_to_id(each) is not None]

    def decode(self, payload: Payload) -> Item:
        item, options = super().decode(payload), payload.options
        prompt = self.prompts.find(options.prompt_name, options.input_type)
        return replace(item, text=prompt + item.text)  # a TokenText after `prepare`

    def limit(self, options: Any) -> int:
        most, kind = super().limit(options), options.input_type
        expanded = self.late.expansion if kind == "query" else {}
        own = self.late.lengths.get(kind, self.max_length)
        if expanded:
            own = expanded["length"] if expanded["strategy"] == "fixed" else max(own, expanded["length"])
        return min(most, own)

    def prepare(self, items: Sequence[Item]) -> Sequence[Item | ItemError]:
        """Tokenise; expand queries to the model's length."""
        return [each if isinstance(each, ItemError) else self._complete(each) for each in super().prepare(items)]

    def _complete(self, item: Item) -> Any:
        expanded = self.late.expansion if item.options.input_type == "query" else {}
        missing = max(0, expanded.get("length", 0) - len(item.ids))
        ids, kinds = [*item.ids, *missing * [self._expansion_id]], [*item.type_ids, *missing * [0]]
        unseen = 0 if expanded.get("attend") else missing
        return TokenText(item.text, item.options, ids, kinds, unseen=unseen)

    @property
    def _expansion_id(self) -> int:
        """The token of an expansion; without a name it is [MASK], or else the end."""
        if token := self.late.expansion.get("token"):
            return int(self.tokenizer.backend_tokenizer.token_to_id(token))
        known: tuple[int | None, ...] = (self.tokenizer.mask_token_id, self.tokenizer.eos_token_id)
        return next(each for each in known if each is not None)

    def stack(self, rows: Sequence[Any]) -> Arrays:
        arrays = super().stack(rows)
        for mask, row in zip(arrays.get("attention_mask", ()), rows, strict=False):
            mask[len(row.ids) - getattr(row, "unseen", 0) :] = 0
        return arrays

    def words_of(self, outputs: Outputs, at: int, item: Item) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the words of one text with their weights, as its options limit them."""
        options: Any = item.options
        if "token_weights" in outputs:
            model = self.tokenizer
            excluded = [model.cls_token_id, model.eos_token_id, self.pad_id, model.unk_token_id]
            words = gather_words(
                item.ids, outputs["token_weights"][at], [each for each in excluded if each is not None]
            )
        else:
            row = outputs["weights"][at]
            words = np.arange(len(row)), row
        return choose_words(*words, options.top_k or self.most_words, options.threshold)

    def words(self, outputs: Outputs, at: int, item: Item) -> Json:
        """Return the words of one text as its response has them."""
        indices, values = self.words_of(outputs, at, item)
        found: Json = {"indices": indices, "values": values}
        if item.options.return_tokens:
            found["tokens"] = [self.tokenizer.backend_tokenizer.id_to_token(int(each)) for each in indices]
        return found

    def vectors_of(self, outputs: Outputs, at: int, item: Item) -> NDArray[np.float32]:
        """Return the vectors of one text's tokens, (T, E), without those that the model skips."""
        found: NDArray[np.float32] = outputs["vectors"][at][: len(item.ids)]
        if (self.archive.checkpoint_dir / LATE_HEAD).is_file():
            return found[1:]  # bge-m3 has none for its first token
        is_skipped = (item.options.input_type or "document") in self.late.skipped_kinds
        return found[~np.isin(item.ids, self.skipped_ids)] if is_skipped else found
