"""Values that are odd: numbers at limits, text that is none, names that mean something to somebody.

Everything that a client invents carries the canary, which no error and no line of the log may repeat.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.fuzz.documents import Object, Raw

# Longer than any name that a message repeats.
CANARY = "zqxcanaryqz" * 4

T = TypeVar("T")

# As JSON has them, spelled out: what a parser makes of each is its affair.
NUMBERS = (
    *("0", "-0", "1", "-1", "2", "3", "5", "7", "16", "17", "64", "100", "101", "255", "256", "257", "1000", "1025"),
    *("10000", "10001", "65536", "50000", "50001", "2147483647", "2147483648", "-2147483648", "-2147483649"),
    *("3000000000", "4294967295", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616"),
    *("0.0", "0.5", "1.0", "-0.0", "1.0000001", "0.1", "10.0", "1e-7", "1e-323", "5e-324", "1e308", "1e309", "-1e999"),
    *("1E400", "65504", "65520", "3.5e38", "NaN", "Infinity", "-Infinity", "1" + "0" * 400, "9" * 4300, "9" * 4301),
    *("-" + "9" * 4299, "0." + "1" * 5000, "01", "+1", "1.", ".5", "0x10", "1_000", "--1", "1e", "١"),
)

# Characters that some step on the way may trip over.
STRANGE = (
    *("", " ", "\t\n", "\0", "a\0b", "\ufeff", "\u200b", "\u200b\u200c\u200d", "\u202e", "\u2028", "\x7f", "\x1b[31m"),
    *("\ud800", "\udfff", "a\udc80b", "\ud83d", "\U0010ffff", "\uffff", "\ufdd0", "\u0300" * 200, "🏳️‍🌈", "ﷺ" * 50),
    *("é", "e\u0301", "İ", "ẞ", "ǅ", "ﬁ", "①", "Ω", "𝔘", "한글", "漢字", "עברית", "عربى", "ไทย", "ᄀ" * 30, "\u1160"),
    *("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>", ">>fr<<", "__label__en"),
    *("▁", "##", "##a", "Ġ", "</w>", "%", "%s", "%n", "{}", "{0}", "${jndi:x}", "\\", '"', "'", "null", "true", "nan"),
    *("../../etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/", "A" * 513, "a " * 300, "\n" * 100, "-" * 300),
)

# Names that Python, pydantic, the protocol or a class of ours use themselves.
NAMES = (
    *(
        "self",
        "cls",
        "args",
        "kwargs",
        "__class__",
        "__init__",
        "__dict__",
        "__pydantic_fields__",
        "__dataclass_fields__",
    ),
    *("config", "options", "values", "value", "name", "payload", "body", "data", "instances", "inputs", "parameters"),
    *("outputs", "id", "text", "b64", "question", "context", "number", "error", "predictions", "row", "headers", "url"),
    *(
        "top_k",
        "threshold",
        "label_prefix",
        "aggregation",
        "max_answer_tokens",
        "align_to_words",
        "src_lang",
        "tgt_lang",
    ),
    *("max_new_tokens", "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "repetition_penalty"),
    *("truncation", "padding", "max_length", "trust_remote_code", "do_sample", "temperature", "binary_data_output"),
    *(
        "binary_data_size",
        "sequence_id",
        "priority",
        "timeout",
        "triton_x",
        "shared_memory_region",
        "",
        " ",
        "a.b",
        "\0",
    ),
    *("top_k ", "Top_K", "top\u200b_k", "\ud800", "ключ", "🗝", "-1", "0", "None", "lambda", "return", "self\0"),
)

LENGTHS = (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 1024)


class Draw(random.Random):
    """Chance, by a seed that says what is drawn for."""

    def one(self, *chances: T) -> T:
        """One of several, equally likely."""
        return self.choice(chances)

    def often(self, share: float) -> bool:
        """Whether something of that probability happens."""
        return self.random() < share

    def of(self, *weighted: tuple[float, Callable[[], T]]) -> T:
        """What one of several makes, by their weights."""
        (made,) = self.choices([make for _, make in weighted], [weight for weight, _ in weighted])
        return made()


def number(draw: Draw) -> Raw:
    """A number, or what looks like one."""
    return Raw(draw.choice(NUMBERS))


def string(draw: Draw) -> str:
    """Some text, odd more often than not."""
    return draw.of(
        (4, lambda: draw.choice(STRANGE)),
        (2, lambda: CANARY + draw.choice(STRANGE)),
        (1, lambda: CANARY * draw.choice(LENGTHS)),
        (1, lambda: "".join(chr(draw.randrange(0x3000)) for _ in range(draw.choice(LENGTHS[:9])))),
        (1, lambda: draw.choice(NUMBERS)),
    )


def name(draw: Draw) -> str:
    """A name of a field; what is not of a list is long and carries the canary."""
    return draw.of(
        (6, lambda: draw.choice(NAMES)),
        (1, lambda: CANARY * draw.one(8, 100, 2000)),
        (1, lambda: f"{CANARY}.{draw.choice(STRANGE)}"),
    )


def value(draw: Draw, depth: int = 2) -> Any:
    """Anything that JSON may hold, and some that it may not."""
    nested: Sequence[tuple[float, Callable[[], Any]]] = (
        (1, lambda: [value(draw, depth - 1) for _ in range(draw.choice(LENGTHS[:5]))]),
        (1, lambda: Object((name(draw), value(draw, depth - 1)) for _ in range(draw.choice(LENGTHS[:4])))),
    )
    return draw.of(
        (3, lambda: number(draw)),
        (3, lambda: string(draw)),
        (2, lambda: draw.one(None, True, False)),
        (1, lambda: draw.one([], Object())),
        (0.3, lambda: deep(draw)),
        *(nested if depth else ()),
    )


def deep(draw: Draw) -> Raw:
    """Lists or objects in one another, closed or not."""
    depth = draw.one(10, 70, 300, 1100, 5000, 100_000)
    opening, closing = draw.one(("[", "]"), ('{"a":', "}"), ('[{"":', "}]"))
    inner = draw.one("1", '""', "null")
    return Raw(opening * depth + inner + (closing * depth if draw.often(0.8) else ""))
