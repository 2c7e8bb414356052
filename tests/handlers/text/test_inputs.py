"""Texts become checked text and padded arrays; answers have a length that follows from them."""

import pytest

from handlers.errors import ItemError
from handlers.protocol.requests import Payload
from handlers.text.inputs import Text, rounded_length, text_of, tokenised


@pytest.mark.parametrize("text", ["plain", " with ends ", "한국어 문장", "👩‍👩‍👧 emoji", "עברית", "line\nbreak", "1"])
def test_text_in_any_utf8_comes_back_as_it_was_sent(text: str) -> None:
    for value in (text, bytearray(text.encode()), {"text": text}):
        assert text_of(Payload(value), 11) == text


def test_tokenised_text_has_its_tokens_or_an_error_of_its_own() -> None:
    item = Text("a text", None)
    assert tokenised(item, [7, 8], 2, [0, 1], "record") == Text("a text", None, [7, 8], [0, 1], "record")
    too_long = ItemError(413, "TextTooLong", "text: 3 tokens; max_length is 2.")
    assert tokenised(item, [7, 8, 9], 2) == too_long
    assert tokenised(item, [], 2) == ItemError(400, "EmptyInput", "text: nothing that the tokenizer knows.")


def test_rounded_length_takes_few_values_that_hold_the_tokens_with_little_padding() -> None:
    for limit in (7, 100, 512, 4096):
        for length in range(1, limit + 1):
            rounded = rounded_length(length, limit)
            assert length <= rounded <= limit
            assert rounded - length < max(8, length / 4)
    assert len({rounded_length(length, 512) for length in range(1, 513)}) == 20
