"""Lengths of items that are not decoded yet."""

from collections.abc import Sequence

import numpy as np
import pytest

from handlers.adaptive.length_estimate import LengthEstimate, size_of
from handlers.errors import ItemError
from handlers.protocol.requests import Payload, Value

BAD = ItemError(400, "EmptyInput", "")


def learned(*batches: tuple[Sequence[int], Sequence[int]]) -> LengthEstimate:
    lengths = LengthEstimate()
    for sizes, tokens in batches:
        lengths.learn(sizes, tokens)
    return lengths


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (b"12345", 5),
        (bytearray(b"123"), 3),
        ("한국어", 3),
        ({"question": "who?", "context": "nobody"}, 10),
        ({"text": "abc", "number": 7}, 3),
        ({"number": 7}, 0),
        (np.zeros((2, 3, 3), np.uint8), 18),
        # What unpacking a tensor of shape [B] leaves of each item.
        (np.int64(5), 8),
    ],
)
def test_size_of_every_kind_of_payload_is_known(value: Value, size: int) -> None:
    assert size_of(Payload(value)) == size


def test_lengths_before_anything_is_known_count_an_item_as_one() -> None:
    assert LengthEstimate().expect([Payload(b"x" * 1000), BAD, Payload("y")]) == 2


def test_lengths_of_images_stay_one_an_item_whatever_their_bytes() -> None:
    lengths = learned(([50_000, 900_000], [1, 1]), ([10], [1]))
    assert lengths.expect([Payload(b"x" * 1_000_000)] * 3) == 3


def test_lengths_of_texts_follow_tokens_per_byte() -> None:
    lengths = learned(([40], [10]), ([80, 40], [20, 10]))
    assert lengths.expect([Payload("x" * 400)]) == pytest.approx(100)
    assert lengths.expect([Payload("x" * 400), BAD, Payload({"text": "x" * 200})]) == pytest.approx(150)


def test_lengths_of_a_tiny_text_are_at_least_one() -> None:
    assert learned(([40], [10]), ([80], [20])).expect([Payload("x")]) == 1


def test_lengths_of_traffic_that_changes_its_language_follow_it() -> None:
    english = [([400], [100])] * 20
    korean = [([100], [100])] * 40
    lengths = learned(([40], [11]), *english, *korean)
    assert lengths.expect([Payload("가" * 100)]) == pytest.approx(100, rel=0.05)


def test_lengths_learn_nothing_of_items_without_a_size() -> None:
    lengths = learned(([], []), ([0], [7]))
    assert lengths.expect([Payload(b"x")]) == 1
