"""What each task is sent by those who use it well: items, their options, and the tensors of both.

The model behind a task, and the settings of its archive, are those of tests.fuzz.archives.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz import images, texts
from tests.fuzz.tensors import Tensor
from tests.fuzz.values import CANARY, Draw
from tests.tiny_seq2seq import SENTENCES

# The archives of the fuzzer take so many items of a request, and so many bytes of a body.
MAX_INSTANCES = 8
MAX_BODY_BYTES = 1024 * 1024
MAX_TEXT_BYTES = 64 * 1024

# An item as the fields of its JSON object.
Item = dict[str, Any]


def _text_item(draw: Draw) -> Item:
    return {"text": texts.text(draw)}


def _odd_text_item(draw: Draw) -> Item:
    return {"text": texts.odd_text(draw)}


@dataclass(frozen=True, slots=True)
class Kind:
    """A task, as its clients see it.

    Attributes:
        name: of the task.
        options: what is valid for each option.
        item: makes an item that clients send.
        odd_item: makes one at a limit, or beyond.
        budget_s: the longest that an answer may take: a batch of twelve takes some hundredths of it, and a machine may
            stall for a second or two.
        max_body_bytes: what the archive takes.
    """

    name: str
    options: Mapping[str, Callable[[Draw], Any]] = field(default_factory=dict)
    item: Callable[[Draw], Item] = _text_item
    odd_item: Callable[[Draw], Item] = _odd_text_item
    budget_s: float = 5.0
    max_body_bytes: int = MAX_TEXT_BYTES

    def raw(self, draw: Draw, item: Item) -> bytes:
        """The item as a body: its bytes, where it has one input."""
        if "b64" in item:
            return base64.b64decode(item["b64"])
        return texts.encoded(draw, next(iter(item.values())))

    def chosen(self, draw: Draw) -> dict[str, Any]:
        """Some of the options, with values that are valid."""
        return {name: make(draw) for name, make in self.options.items() if draw.often(0.3)}

    def tensors(self, draw: Draw, items: Sequence[Item], *, is_binary: bool) -> list[Tensor]:
        """The items as tensors, some options with them."""
        count = len(items)
        shape = draw.one((count,), (count, 1))
        made = []
        for name in items[0]:
            values = [item.get(name, "") for item in items]
            if name == "b64" and is_binary:
                values = [base64.b64decode(value) for value in values]
            made.append(Tensor("image" if name == "b64" else name, "BYTES", shape, values))
        return made + [_option(draw, name, make, shape) for name, make in self.options.items() if draw.often(0.15)]


def _option(draw: Draw, name: str, make: Callable[[Draw], Any], shape: tuple[int, ...]) -> Tensor:
    values = [make(draw) for _ in range(shape[0])]
    first = values[0] if values else 0
    if isinstance(first, bool):
        return Tensor(name, "BOOL", shape, values)
    if isinstance(first, int):
        return Tensor(name, draw.one("INT64", "INT32", "UINT8", "FP32"), shape, [min(value, 127) for value in values])
    if isinstance(first, float):
        return Tensor(name, draw.one("FP32", "FP64"), shape, values)
    return Tensor(name, "BYTES", shape, values)


def _image_item(draw: Draw) -> Item:
    return {"b64": base64.b64encode(images.image(draw)).decode()}


def _odd_image_item(draw: Draw) -> Item:
    made = images.refused(draw) if draw.often(0.2) else images.lying(draw)
    return {"b64": base64.b64encode(made).decode()}


def _question(draw: Draw) -> Item:
    return {"question": draw.one("Who wrote the letter?", "Where?", f"{CANARY}?"), "context": texts.text(draw)}


def _odd_question(draw: Draw) -> Item:
    asked = {"question": texts.text(draw), "context": texts.text(draw)}
    return {**asked, draw.one("question", "context"): texts.odd_text(draw)}


def _sentence(draw: Draw) -> Item:
    return {"text": draw.choice(SENTENCES)} if draw.often(0.6) else _text_item(draw)


def _count(draw: Draw) -> int:
    return draw.one(1, 2, 3, 5, 100)


LANGUAGES = ("en", "fr", "de", "ko", "zu", "auto")

KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "image_classification",
            {"top_k": _count},
            _image_item,
            _odd_image_item,
            max_body_bytes=MAX_BODY_BYTES,
        ),
        Kind("text_classification", {"top_k": _count}),
        Kind(
            "token_classification", {"aggregation": lambda draw: draw.one("none", "simple", "first", "average", "max")}
        ),
        Kind(
            "question_answering",
            {
                "top_k": _count,
                "max_answer_tokens": lambda draw: draw.one(1, 15, 384, 10**6),
                "align_to_words": lambda draw: draw.often(0.5),
            },
            _question,
            _odd_question,
        ),
        Kind("sentence_embedding"),
        Kind(
            "tokenization",
            {
                "padding": lambda draw: draw.one("longest", "max_length"),
                "max_length": lambda draw: draw.one(2, 3, 16, 192),
                "truncation": lambda draw: draw.often(0.5),
            },
        ),
        Kind(
            "translation",
            {
                "src_lang": lambda draw: draw.choice(LANGUAGES),
                "tgt_lang": lambda draw: draw.choice(LANGUAGES),
                "min_score": lambda draw: draw.one(0.0, 0.4, 1.0),
                "split": lambda draw: draw.one("none", "sentences"),
                "max_new_tokens": lambda draw: draw.one(1, 2, 8),
                "num_beams": lambda draw: draw.one(1, 1, 2),
                "length_penalty": lambda draw: draw.one(-10.0, 0.0, 1.0, 10.0),
                "early_stopping": lambda draw: draw.often(0.5),
                "no_repeat_ngram_size": lambda draw: draw.one(0, 1, 2, 100),
                "repetition_penalty": lambda draw: draw.one(0.1, 1.0, 10.0),
            },
            _sentence,
        ),
        Kind(
            "language_id",
            {
                "top_k": _count,
                "threshold": lambda draw: draw.one(0.0, 0.5, 1.0),
                "label_prefix": lambda draw: draw.often(0.5),
            },
        ),
    )
}
