"""The micro-batch of the most urgent item: in time, of its group, and with few riders."""

from math import inf
from typing import Any

from handlers.batching.batches import BatchLimits, limit_of, select_items
from handlers.batching.engine import Line
from handlers.batching.pending import Entry, Pending
from handlers.batching.policy import Policy
from handlers.protocol.requests import Cost
from handlers.protocol.responses import OneItem
from tests.tables import table

# A millisecond a token.
LINE = Line(0.0, 0.001)
OWN, LATER = (1.0, False), (2.0, False)


def slot(length: int, due_s: float = inf, group: Any = None) -> Entry:
    made = Entry(item=length, cost=Cost(length, group))
    made.request = Pending(OneItem(), [made], 0.0, deadline_s=due_s)
    return made


def select(*ranked: Any, max_items: int = 9, max_tokens: int = 1000, line: Line = LINE) -> list[int]:
    limits = BatchLimits(max_items, max_tokens)
    return [each.item for each in select_items(ranked, limits, line, 10.0)]


@table(
    # At 10 s: 100 ms alone and 200 ms together.
    (10.15, [100]),
    (10.25, [100, 90]),
    # It is late in any case.
    (10.05, [100, 90]),
)
def test_micro_batch_is_cut_so_that_its_most_urgent_item_is_in_time(due_s: float, expected: list[int]) -> None:
    assert select((OWN, slot(100, due_s)), (OWN, slot(90))) == expected


@table(
    # 100 ms, and so at most 50 more: none of these.
    ([100], [75], {}, [100]),
    ([100, 100], [74, 75, 101, 100], {}, [100, 100, 75]),
    ([100, 100], [75], {"max_items": 2}, [100, 100]),
    ([100, 100], [75], {"max_tokens": 299}, [100, 100]),
    ([100, 100], [75], {"max_tokens": 300}, [100, 100, 75]),
    # No time is known: as many as the limits allow.
    ([100], [75, 75], {"line": Line(0.0, 0.0)}, [100, 75, 75]),
)
def test_riders_take_little_padding_and_at_most_half_of_its_time(
    own: list[int], others: list[int], limits: Any, expected: list[int]
) -> None:
    ranked = [*((OWN, slot(each)) for each in own), *((LATER, slot(each)) for each in others)]
    assert select(*ranked, **limits) == expected
    assert select(*ranked[: len(own)], (LATER, slot(100, group="a")), **limits) == own


@table(
    ([100, 90], {}, "idle"),
    ([100, 100, 100], {"max_items": 2}, "full"),
    ([100, 90, 80], {"max_tokens": 200}, "tokens"),
    # The plan leaves items of other lengths, and of other options, for the next micro-batch.
    ([100, 1], {"max_tokens": 150}, "tokens"),
    ([100, 90], {"due_s": 10.15}, "deadline"),
)
def test_micro_batch_says_why_it_has_no_more_items(lengths: list[int], limits: Any, reason: str) -> None:
    limits, due_s = dict(limits), limits.get("due_s", inf)
    limits.pop("due_s", None)
    ranked, most = (
        [(OWN, slot(each, due_s)) for each in lengths],
        BatchLimits(**{"max_items": 9, "max_tokens": 1000, **limits}),
    )
    items = select_items(ranked, most, LINE, 10.0)
    assert limit_of(items, len(ranked), most, LINE, 10.0) == reason


def test_limits_are_those_of_the_settings_or_of_half_of_the_target() -> None:
    policy = Policy(max_latency_s=0.5, max_items=4, max_tokens=300)
    lines = {(0.0, 2**-10): 256, (0.125, 2**-10): 128, (0.0, 2**-12): 300, (0.0, 0.0): 300, (0.0, 9.0): 1}
    found = {line: BatchLimits.of(policy, Line(*line)) for line in lines}
    assert {line: each.max_tokens for line, each in found.items()} == lines
    assert {each.max_items for each in found.values()} == {4}
    # Two streams: one is free, the other one busy for 100 ms, 100 tokens.
    shared = BatchLimits(4, 1000).share_out(300.0, LINE, [0.0, 0.1])
    assert shared.max_tokens == 100
    assert BatchLimits(4, 1000).share_out(300.0, LINE, [0.0]).max_tokens == 150
    assert BatchLimits(4, 40).share_out(300.0, LINE, [0.0]).max_tokens == 40
    # A part is at least ten fixed costs.
    assert BatchLimits(4, 1000).share_out(300.0, Line(0.025, 0.001), [0.0]).max_tokens == 250
