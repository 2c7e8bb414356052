"""Texts become checked text and padded arrays; answers have a length that follows from them."""

import numpy as np
import pytest
import transformers

from handlers.errors import ItemError
from handlers.protocol.requests import Payload
from handlers.text.answer_lengths import AnswerLengths, in_few_classes
from handlers.text.inputs import Text, right_padded, rounded_length, text_of, tokenised


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


def test_right_padded_rows_are_masked_where_they_are_padding() -> None:
    input_ids, attention_mask = right_padded([[1, 2], [3]], 3, 9)
    assert np.array_equal(input_ids, [[1, 2, 9], [3, 9, 9]])
    assert np.array_equal(attention_mask, [[1, 1, 0], [1, 0, 0]])
    assert input_ids.dtype == attention_mask.dtype == np.int64


@pytest.mark.parametrize(
    ("said", "positions", "wanted", "usual", "limit"),
    [
        ({"max_length": 512}, 512, 512, 511, 512),
        ({"max_length": 512}, 128, 512, 128, 128),
        ({"max_new_tokens": 64, "max_length": 512}, None, 512, 64, 512),
        ({"max_length": None}, None, 512, 256, 512),
        ({"max_length": None}, None, 100, 100, 100),
    ],
)
def test_answer_lengths_are_the_least_of_what_files_positions_and_settings_say(
    said: dict[str, int | None], positions: int | None, wanted: int, usual: int, limit: int
) -> None:
    generation = transformers.GenerationConfig()
    for name, value in said.items():
        setattr(generation, name, value)
    assert AnswerLengths.read(generation, positions, wanted) == AnswerLengths(usual, limit)


def test_answer_length_follows_the_sources_up_to_the_usual_in_few_classes() -> None:
    assert [AnswerLengths(256, 512).of(source) for source in (1, 10, 40, 100)] == [35, 62, 152, 256]
    assert [in_few_classes(tokens) for tokens in (1, 2, 35, 64, 65)] == [1, 2, 64, 64, 128]
