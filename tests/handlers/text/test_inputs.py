"""Texts become checked text and padded arrays; answers have a length that follows from them."""

from handlers.text.inputs import round_length


def test_rounded_length_takes_few_values_that_hold_the_tokens_with_little_padding() -> None:
    for limit in (7, 100, 512, 4096):
        for length in range(1, limit + 1):
            rounded = round_length(length, limit)
            assert length <= rounded <= limit
            assert rounded - length < max(8, length / 4)
    assert len({round_length(length, 512) for length in range(1, 513)}) == 20
