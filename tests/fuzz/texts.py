"""Texts that clients send, of every length up to the limits and one more, and texts that nobody should send."""

from tests.fuzz.values import CANARY, STRANGE, Draw
from tests.tiny_models import PAGE, TEXTS

WORDS = (*PAGE.split(), *(word for text in TEXTS for word in text.split()))
# The archives of the fuzzer take so many characters; the shortest text that is refused has one more.
MAX_CHARACTERS = 2000


def text(draw: Draw) -> str:
    """A text that a client might send."""
    return draw.of(
        (3, lambda: draw.choice(TEXTS)),
        (4, lambda: " ".join(draw.choices(WORDS, k=draw.randint(1, 30)))),
        (1, lambda: " ".join(draw.choices(WORDS, k=draw.randint(60, 240)))),
    )


def odd_text(draw: Draw) -> str:
    """A text at a limit, or one that is hardly a text."""
    return draw.of(
        (2, lambda: draw.one("a", "a ", "é", "한", "🌉", CANARY) * draw.one(1, 189, 190, 191, 192, 193, 500)),
        (2, lambda: _long(draw)),
        (3, lambda: draw.choice(STRANGE)),
        (2, lambda: _spliced(draw)),
        (1, lambda: "".join(chr(draw.randrange(1, 0xD800)) for _ in range(draw.randint(1, 60)))),
        (1, lambda: draw.choice(WORDS) * draw.one(50, 300)),
    )


def _long(draw: Draw) -> str:
    characters = MAX_CHARACTERS + draw.one(-1, 0, 1)
    return (draw.one("x", "word ", "-", ". ", "\n", "ab\u0300", "\u200b", "𝔘") * characters)[:characters]


def _spliced(draw: Draw) -> str:
    """A text with something strange within."""
    whole = text(draw)
    place = draw.randint(0, len(whole))
    return whole[:place] + draw.choice(STRANGE) + whole[place:]


def encoded(draw: Draw, whole: str) -> bytes:
    """Its bytes, in UTF-8 most of the time."""
    if draw.often(0.9):
        return whole.encode("utf-8", "surrogatepass")
    return whole.encode(draw.one("utf-16", "utf-32-le", "latin-1", "utf-7", "shift_jis"), "replace")
