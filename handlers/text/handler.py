"""The handler that the tasks on a transformers encoder share.

payload -> decode -> checked text -> prepare: one call of the tokenizer for all items -> collate: padded micro-batches
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import cycle, islice
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np

from handlers.archive_files import GRAPH
from handlers.base import BatchHandler
from handlers.engines import TOKENS, Arrays, Engine, Outputs, pad_array, round_up, steps
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig, InvalidInput, InvalidOption, ItemError, TextTooLong
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.task import decode, inputs_of
from handlers.pipeline.values import TEXTS, Inputs
from handlers.protocol.requests import Payload
from handlers.text.config import TextConfig, TruncationOptions
from handlers.text.encoders import Head, find_source_limit, read_tokenizer
from handlers.text.inputs import Side, Text, Tokens, add_tokens, pad_rows, read_payload, round_length
from handlers.text.windows import cut_tokens

ADVICE = " Send truncation: true to cut it."  # the way out for clients whose text is too long

ENDING = ("xlnet",)  # kinds of models whose heads read the end of a padded row

Config = TypeVar("Config", bound=TextConfig)
Item = TypeVar("Item", bound=Text[Any])


class TextHandler(BatchHandler[Config, Item], Generic[Config, Item]):
    """Serves an encoder: checkpoint/ with its tokenizer, model.xml for OpenVINO, or model.safetensors for torch."""

    config_class: ClassVar[Any] = TextConfig
    inputs: Inputs = TEXTS

    head: Head  # the task's use of the encoder
    options_class: ClassVar[Any]  # of one item; a dataclass of handlers.text.config
    needs_places: bool = False  # whether answers are places in the text, which only a fast tokenizer knows

    def load(self) -> Engine:
        config = self.config
        is_trusted, self.head = config.trust_remote_code, self.head.under(config)
        self.tokenizer, self.model_config = read_tokenizer(self.archive.checkpoint_dir, trust_remote_code=is_trusted)
        if self.needs_places and not self.tokenizer.is_fast:
            raise InvalidConfig(
                "tokenizer: this task needs a fast one, and the archive lacks tokenizer.json; add it and build again"
            )
        self.max_length = find_source_limit(self.archive.checkpoint_dir, config.max_length)
        if not self.archive.uses_torch(self.config):
            return OpenVinoEngine(self.archive.model_dir / GRAPH, precision=config.precision, threads=config.threads)
        from handlers.engines.torch import TorchEngine, dtype_for  # noqa: PLC0415
        from handlers.text.encoder_modules import load_encoder  # noqa: PLC0415

        encoder = load_encoder(self.head, self.archive.checkpoint_dir, trust_remote_code=config.trust_remote_code)
        encoder.to(self.archive.device, dtype_for(self.archive.device, config.precision))
        return TorchEngine(encoder, self.archive.device, encoder.input_names, encoder.output_names, config.threads)

    def sample(self) -> Payload:
        text = "What went before decides what comes next."
        while len(text) > 1 and isinstance(self.prepare([decode(self, Payload(text))])[0], ItemError):
            text = text[: len(text) // 2].rstrip()
        return Payload(text)

    def decode(self, payload: Payload) -> Item:
        options = payload.options
        self.check(options)
        accepts_blank = self.results.api is not None  # sentence-transformers and OpenAI embed white space
        text = read_payload(payload, self.config.max_characters, accepts_blank=accepts_blank, **self.reading(options))
        if payload.allowance:
            payload.allowance.take("characters", len(text), self.config.max_request_characters)
        return cast(Item, Text(text, options))

    def reading(self, options: object) -> dict[str, Any]:
        """Return the arguments of `read_text` for a text that may be cut; InvalidOption as `limit`."""
        self.limit(options)
        side = self.cut_side(options)
        # Places count from the start of a text.
        return {"cut": None if self.needs_places and side == "left" else side, "advice": ADVICE}

    def check(self, options: object) -> None:
        """Raise InvalidOption if the model cannot follow the options of an item."""

    def limit(self, options: object) -> int:
        """Return the most tokens of a text; InvalidOption if its client asks for another side or more."""
        asked = self._truncation(options)
        most, side = asked.truncate_prompt_tokens or -1, asked.truncation_side
        if most > self.max_length:
            raise InvalidOption(f"truncate_prompt_tokens: {most}; at most {self.max_length}.")
        if side not in (None, self.tokenizer.truncation_side) and not self.tokenizer.is_fast:
            raise InvalidOption(f"truncation_side: must be {self.tokenizer.truncation_side} for this model.")
        return self.max_length if most == -1 else most

    def cut_side(self, options: object) -> Side | None:
        """Return the side on which a text that is too long is cut off; None if it is an error."""
        asked = self._truncation(options)
        is_cut = asked.truncation or asked.truncate_prompt_tokens is not None
        return (asked.truncation_side or self.tokenizer.truncation_side) if is_cut else None

    def _truncation(self, options: Any) -> TruncationOptions:
        """Return the options of a text; a task of a user may have others."""
        is_known = isinstance(options, TruncationOptions)
        return options if is_known else TruncationOptions(truncation=self.config.truncation)

    def prepare(self, items: Sequence[Item]) -> Sequence[Item | ItemError]:
        """Tokenise all items in one call; reject a text that is too long, or cut it if that is allowed."""
        paired = [item for item in items if item.pair is not None]
        if 0 < len(paired) < len(items):
            alone = iter(self.prepare([item for item in items if item.pair is None]))
            pairs = iter(self.prepare(paired))
            return [next(alone if item.pair is None else pairs) for item in items]
        encodings = self.tokenizer(
            [item.text for item in items],
            [item.pair for item in items] if paired else None,
            return_attention_mask=False,
            return_token_type_ids=True,
        )
        places = encodings.encodings or [None] * len(items)
        rows = zip(items, encodings["input_ids"], encodings["token_type_ids"], places, strict=True)
        return [self.fit(*row) for row in rows]

    def fit(self, item: Item, ids: Sequence[int], type_ids: Sequence[int], encoding: Any) -> Item | ItemError:
        """Return an item with its tokens, cut if they are too many and that is allowed; or its error."""
        limit, side = self.limit(item.options), self.cut_side(item.options)
        if len(ids) > limit and side is None:
            return ItemError.of(TextTooLong(f"text: {len(ids)} tokens; max_length is {limit}.{ADVICE}"))
        try:
            if len(ids) > limit and side is not None:
                ids, type_ids = cut_tokens(self.tokenizer, (item.text, item.pair), encoding, limit, side)
        except InvalidInput as error:
            return ItemError.of(error)
        return add_tokens(item, ids, limit, type_ids)

    def cost(self, item: Item) -> Cost:
        return Cost(self.padded_length(len(item.ids)), group=self.marks(item.ids), sent=len(item.ids))

    def marks(self, ids: Sequence[int]) -> int:
        """Count the end tokens of a row, which a client's text may contain.

        Heads as BART's take the state of the last one after sorting those of all rows by their number, so that rows of
        other numbers in a micro-batch would move each other's scores.
        """
        end = getattr(self.model_config, "eos_token_id", None)
        return ids.count(end) if isinstance(end, int) and not self.head.is_pooled else 0

    def padded_length(self, tokens: int) -> int:
        if self.config.padding == "exact":
            return tokens
        lengths = inputs_of(self).overhead.lengths
        tokens = round_up(tokens, lengths) if lengths else tokens
        return self.max_length if self.config.padding == "max_length" else round_length(tokens, self.max_length)

    @cached_property
    def pad_id(self) -> int:
        """The token that fills rows up: the model's own padding, or else any token of its vocabulary."""
        model = getattr(self, "model_config", None)
        known = (getattr(model, "pad_token_id", None), self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        size = getattr(model, "vocab_size", None) or len(self.tokenizer)
        return next((each for each in known if each is not None and 0 <= each < size), 0)

    def collate(self, items: Sequence[Item]) -> Arrays:
        return self.stack(items)

    def examples(self, items: Sequence[Item]) -> Sequence[Arrays]:
        """Return a row of each length of the ladder, whose last token is padding."""
        if self.config.padding == "exact":
            return []
        row = getattr(items[0], "windows", items)[0]

        def cut(numbers: Sequence[int], length: int) -> list[int]:
            return [*islice(cycle(numbers), max(1, length - 1))]

        lengths = steps(TOKENS, self.max_length)
        texts = [Text("", None, cut(row.ids, length), cut(row.type_ids, length)) for length in lengths]
        return [self.stack([text]) for text in texts]

    def stack(self, rows: Sequence[Tokens]) -> Arrays:
        """Pad rows on the tokenizer's side: ids, attention mask and, if the model has them, segments, (B, T) int64."""
        length = self.padded_length(max(len(row.ids) for row in rows))
        # Places in a text are counted from the left, and so is the part that `forward` keeps with `padding: exact`.
        # A decoder reads its last token by the mask: padding before the text would turn its row into NaN in OpenVINO.
        reads_end = (
            self.config.trust_remote_code or getattr(getattr(self, "model_config", None), "model_type", "") in ENDING
        )
        is_left = reads_end and self.tokenizer.padding_side == "left" and not self.needs_places
        is_left = is_left and self.config.padding != "exact"
        arrays = pad_rows([row.ids for row in rows], length, self.pad_id, is_left=is_left)
        arrays["token_type_ids"] = pad_array([row.type_ids for row in rows], length, 0, is_left=is_left)
        wanted = {*self.engine.input_names, *(("attention_mask",) if self.config.padding == "exact" else ())}
        return {name: array for name, array in arrays.items() if name in wanted}

    def forward(self, inputs: Arrays, items: Sequence[Item]) -> Outputs:
        """Run the model once; with `padding: exact` once for each length."""
        if self.config.padding != "exact" or "attention_mask" not in inputs:
            return super().forward(inputs, items)
        lengths = inputs["attention_mask"].sum(1)
        parts = []
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            cut = {name: inputs[name][rows, :length] for name in self.engine.input_names}
            parts.append((rows, self.engine.run(cut)))
        return {name: _join_rows([(rows, part[name]) for rows, part in parts]) for name in parts[0][1]}


def _join_rows(parts: Sequence[tuple[Any, Any]]) -> Any:
    """Put the rows of several outputs into one; outputs for each token are filled up with zeros."""
    shape = np.max([array.shape for _, array in parts], axis=0)
    shape[0] = sum(map(len, (rows for rows, _ in parts)))
    whole = np.zeros(shape, parts[0][1].dtype)
    for rows, array in parts:
        whole[(rows, *map(slice, array.shape[1:]))] = array
    return whole
