"""A step that fails is repeated for each item that still needs its answer."""

from collections.abc import Sequence
from typing import Any

from handlers.config import HandlerConfig
from handlers.errors import (
    INTERNAL_ERROR,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    InvalidInput,
    ItemError,
    OutOfMemory,
    OutOfTime,
    WorkTooLarge,
    WrongOutput,
)
from handlers.pipeline.failures import fail, find_excess, isolate
from handlers.pipeline.jobs import Slot
from handlers.protocol.requests import Cost
from tests.tables import table


def slots(*items: Any) -> list[Slot]:
    return [Slot(item=each, is_over=each is None) for each in items]


def outcomes(made: list[Slot]) -> list[Any]:
    return [each.error or each.item for each in made]


@table(
    # The last one that is left has not failed alone yet.
    ((None, 2), [[2]], {}),
    ((None, 0), [[0]], {0: INTERNAL_ERROR}),
    ((0,), [], {0: INTERNAL_ERROR}),
    ((1, 2, 3, 0), [[1, 2], [3, 0], [3], [0]], {0: INTERNAL_ERROR}),
    ((None, None), [], {}),
)
def test_items_are_tried_again_without_the_faulty_one(given: Any, tried: list[Any], failed: dict[int, Any]) -> None:
    calls: list[list[Any]] = []

    def step(part: Sequence[Slot]) -> None:
        calls.append([each.item for each in part])
        if 0 in calls[-1]:
            raise ZeroDivisionError

    made = slots(*given)
    isolate(made, step, ZeroDivisionError())
    assert (calls, outcomes(made)) == (tried, [failed.get(each, each) for each in given])


def test_items_whose_time_is_up_are_not_tried_again() -> None:
    made = slots(1, None, 2)
    isolate(made, lambda _: 1 / 0, OutOfTime())
    assert outcomes(made) == [OUT_OF_TIME, None, OUT_OF_TIME]


@table(
    *((each, OUT_OF_MEMORY) for each in (OutOfMemory(), MemoryError())),
    (OutOfTime(), OUT_OF_TIME),
    (InvalidInput("No."), ItemError(400, "InvalidInput", "No.")),
    (WrongOutput("y lacks"), ItemError(500, "WrongOutput", "y lacks")),
    (LookupError("secret"), INTERNAL_ERROR),
)
def test_each_failure_is_an_error_of_its_own_kind(error: Exception, expected: ItemError) -> None:
    (slot,) = slots(1)
    fail(slot, error)
    assert (slot.error, slot.item) == (expected, None)


@table(
    ([Cost(4), Cost(6)], ""),
    ([Cost(4), Cost(3, work=7)], "The items of the request come to 11 tokens; max_request_tokens is 10."),
    ([Cost(1, group=each) for each in "aba"], ""),
    ([Cost(1, group=each) for each in "abc"], "The items of the request have 3 sets of options; max_groups is 2."),
)
def test_request_of_too_much_work_is_rejected(costs: list[Cost], words: str) -> None:
    config = HandlerConfig(max_request_tokens=10, max_groups=2)
    # One that has failed already costs nothing.
    made = [Slot(cost=each) for each in costs] + [Slot(error=ItemError(400, "Any", ""), cost=Cost(99, group="z"))]
    error = find_excess(made, config)
    assert (error.message if error else "", error is None or (error.code, error.type) == (413, "WorkTooLarge")) == (
        words,
        True,
    )
    own = ItemError.of(WorkTooLarge("own"))
    assert find_excess([*made, Slot(error=own)], config) is own
    assert find_excess(made[:-1], HandlerConfig(max_request_tokens=None, max_groups=9)) is None
