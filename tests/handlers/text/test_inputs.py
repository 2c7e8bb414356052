from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.errors import InvalidInput, ItemError, TextTooLong, UnknownShape
from handlers.protocol.requests import Payload
from handlers.text.inputs import TUNING, Text, padded, read_text, right_padded, rounded_length, text_of, tokenised


@pytest.mark.parametrize("text", ["plain", " with ends ", "한국어 문장", "👩‍👩‍👧 emoji", "עברית", "line\nbreak", "1"])
def test_read_text_any_utf8_comes_back_as_it_was_sent(text: str) -> None:
    assert read_text(text, "text", 100) == text
    assert read_text(bytearray(text.encode()), "text", 100) == text


@pytest.mark.parametrize(
    ("value", "code", "type_", "message"),
    [
        ("", 400, "EmptyInput", "text: empty."),
        (" \n\t\u3000", 400, "EmptyInput", "text: empty."),
        (b"abc\xff", 400, "InvalidText", "text: not valid UTF-8 at byte 3."),
        ("a\0b", 400, "InvalidText", "text: has a null character at position 1."),
        ("a\ud800", 400, "InvalidText", "text: has a lone surrogate at position 1."),
        ("x" * 101, 413, "TextTooLong", "text: 101 characters; max_characters is 100."),
        (7, 400, "UnknownShape", "text: must be a string."),
        (None, 400, "UnknownShape", "text: must be a string."),
        (["a"], 400, "UnknownShape", "text: must be a string."),
    ],
)
def test_read_text_bad_value_has_its_own_error(value: Any, code: int, type_: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_text(value, "text", 100)
    assert (raised.value.code, type(raised.value).__name__, str(raised.value)) == (code, type_, message)


@pytest.mark.parametrize("value", ["a text", b"a text", {"text": "a text"}])
def test_text_of_body_or_field_is_the_text(value: Any) -> None:
    assert text_of(Payload(value), 6) == "a text"


@pytest.mark.parametrize(
    ("value", "error"), [("a text", TextTooLong), ({"text": "a text"}, TextTooLong), ({"text": 7}, UnknownShape)]
)
def test_text_of_bad_body_or_field_has_the_errors_of_read_text(value: Any, error: type[InvalidInput]) -> None:
    with pytest.raises(error):
        text_of(Payload(value), 5)


def test_tokenised_text_that_fits_has_its_tokens() -> None:
    item = Text("a text", None)
    assert tokenised(item, [7, 8], 2, [0, 1], "record") == Text("a text", None, [7, 8], [0, 1], "record")


def test_tokenised_text_that_is_too_long_is_its_own_error() -> None:
    assert tokenised(Text("a text", None), [7, 8, 9], 2) == ItemError(
        413, "TextTooLong", "text: 3 tokens; max_length is 2."
    )


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_rounded_length_any_holds_the_tokens_with_little_padding(length: int, limit: int) -> None:
    rounded = rounded_length(length, limit)
    assert rounded >= length
    assert rounded <= max(limit, length)
    assert rounded - length < max(8, length / 4, TUNING.last_step if length > 1024 else 0)


def test_rounded_length_takes_few_values() -> None:
    assert len({rounded_length(length, 512) for length in range(1, 513)}) == 20


def test_padded_rows_fill_from_the_left() -> None:
    assert np.array_equal(padded([[1, 2], [3]], 3, 9), [[1, 2, 9], [3, 9, 9]])


def test_right_padded_rows_are_masked_where_they_are_padding() -> None:
    input_ids, attention_mask = right_padded([[1, 2], [3]], 3, 9)
    assert np.array_equal(input_ids, [[1, 2, 9], [3, 9, 9]])
    assert np.array_equal(attention_mask, [[1, 1, 0], [1, 0, 0]])
    assert input_ids.dtype == attention_mask.dtype == np.int64
