"""Texts become checked text and padded arrays; answers have a length that follows from them."""

import pytest

from handlers.protocol.requests import Payload
from handlers.text.inputs import rounded_length, text_of


@pytest.mark.parametrize("text", ["plain", " with ends ", "한국어 문장", "👩‍👩‍👧 emoji", "עברית", "line\nbreak", "1"])
def test_text_in_any_utf8_comes_back_as_it_was_sent(text: str) -> None:
    for value in (text, bytearray(text.encode()), {"text": text}):
        assert text_of(Payload(value), 11) == text


def test_rounded_length_takes_few_values_that_hold_the_tokens_with_little_padding() -> None:
    for limit in (7, 100, 512, 4096):
        for length in range(1, limit + 1):
            rounded = rounded_length(length, limit)
            assert length <= rounded <= limit
            assert rounded - length < max(8, length / 4)
    assert len({rounded_length(length, 512) for length in range(1, 513)}) == 20
