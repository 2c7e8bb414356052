"""What the items of one request may ask for together."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from handlers.config import HandlerConfig
from handlers.errors import ItemError, WorkTooLarge
from handlers.pipeline.budget import excess
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.allowance import UNLIMITED, SharedAllowance

CONFIG = HandlerConfig(max_request_tokens=100, max_groups=2)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([Cost(50), Cost(50)], None),
        ([Cost(50), Cost(51)], "101 tokens; max_request_tokens is 100"),
        ([Cost(10), Cost(10, work=91)], "101 tokens; max_request_tokens is 100"),
        ([Cost(1, "a"), Cost(1, "b"), Cost(1, "a")], None),
        ([Cost(1, "a"), Cost(1, "b"), Cost(1, "c")], "3 sets of options; max_groups is 2"),
        ([], None),
    ],
)
def test_request_with_too_many_tokens_or_sets_of_options_is_refused(costs: list[Cost], message: str | None) -> None:
    error = excess([], costs, CONFIG)
    if message is None:
        assert error is None
    else:
        assert error is not None
        assert (error.code, error.type) == (413, "WorkTooLarge")
        assert message in error.message


def test_request_whose_allowance_is_spent_is_refused_whatever_else_its_items_are() -> None:
    spent = ItemError.of(WorkTooLarge("spent"))
    assert excess([1, ItemError(422, "CorruptInput", ""), spent], [Cost(1)], CONFIG) == spent
    assert excess([1, ItemError(422, "CorruptInput", "")], [Cost(1)], CONFIG) is None


def test_tokens_have_no_limit_where_nothing_is_padded() -> None:
    assert excess([], [Cost(10**9)], HandlerConfig()) is None


def test_allowance_is_for_all_items_together_and_for_each_unit() -> None:
    allowance = SharedAllowance()
    allowance.take("pixels", 60, 100)
    allowance.take("characters", 100, 100)
    allowance.take("pixels", 40, 100)
    with pytest.raises(WorkTooLarge, match="more pixels together than max_request_pixels, 100"):
        allowance.take("pixels", 1, 100)


def test_allowance_refuses_somebody_whoever_asks_first() -> None:
    for _ in range(50):
        allowance, start = SharedAllowance(), threading.Barrier(4)

        def take(_: int, allowance: SharedAllowance = allowance, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                allowance.take("pixels", 30, 100)
            except WorkTooLarge:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(take, range(4))) == 3


def test_item_alone_takes_what_it_likes() -> None:
    UNLIMITED.take("pixels", 10**12, 1)
