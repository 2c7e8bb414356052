from collections.abc import Iterator

from hypothesis import assume, given
from hypothesis import strategies as st

from handlers.pipeline.micro_batches import Cost, Overhead, plan_micro_batches

costs = st.lists(st.builds(Cost, length=st.integers(1, 300), group=st.sampled_from([None, "fr", "de"])), max_size=80)


@given(costs, st.integers(1, 16), st.none() | st.integers(1, 600))
def test_plan_holds_each_item_once_within_the_limits(costs: list[Cost], max_items: int, max_tokens: int | None) -> None:
    batches = plan_micro_batches(costs, max_items, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(costs)))
    for batch in batches:
        assert 1 <= len(batch) <= max_items
        assert len({costs[index].group for index in batch}) == 1
        longest = max(costs[index].length for index in batch)
        assert max_tokens is None or len(batch) == 1 or len(batch) * longest <= max_tokens


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.integers(1, 4), st.sampled_from([(), (1, 2, 4)]))
def test_plan_costs_no_more_than_the_best_partition(lengths: list[int], max_items: int, sizes: tuple[int, ...]) -> None:
    # A plan for equal lengths has as few micro-batches as possible.
    assume(not sizes or len(set(lengths)) > 1)
    overhead = Overhead(sizes=sizes)

    def price(batches: list[list[int]]) -> int:
        rows = [4 if sizes and len(batch) == 3 else len(batch) for batch in batches]
        longest = [max(lengths[index] for index in batch) for batch in batches]
        return sum(overhead.tokens + each * most for each, most in zip(rows, longest, strict=True))

    def partitions(indices: list[int]) -> Iterator[list[list[int]]]:
        if not indices:
            yield []
        for size in range(1, min(max_items, len(indices)) + 1):
            for rest in partitions(indices[size:]):
                yield [indices[:size], *rest]

    by_length = sorted(range(len(lengths)), key=lambda index: lengths[index])
    planned = plan_micro_batches([Cost(length) for length in lengths], max_items, overhead=overhead)
    assert price(planned) == min(price(batches) for batches in partitions(by_length))


def test_plan_sorts_within_groups_and_keeps_the_order_of_arrival_among_equals() -> None:
    lengths = [Cost(9), Cost(2, "fr"), Cost(3), Cost(3), Cost(1, "fr")]
    assert plan_micro_batches(lengths, max_items=2) == [[2, 3], [0], [4, 1]]
    assert [len(batch) for batch in plan_micro_batches([Cost()] * 5000, max_items=1024)] == [*[1024] * 4, 904]
    # With an overhead in items it splits only where that saves more: 50 * (40 + 12) or 10 * (30 + 12) + 50 * (10 + 12).
    mixed = [Cost(10)] * 30 + [Cost(50)] * 10
    assert [len(batch) for batch in plan_micro_batches(mixed, 64, overhead=Overhead(items=12))] == [30, 10]
    assert [len(batch) for batch in plan_micro_batches(mixed, 64, overhead=Overhead(items=200))] == [40]
    # It follows the measured line if a run costs more than the tokens that it saves.
    measured = [((0.005, 1e-6), 5000), ((0.001, 1e-4), 250), ((0.005, 0.0), 2**31), ((0.0, 0.0), 250)]
    assert [Overhead().measured(*line).tokens for line, _ in measured] == [tokens for _, tokens in measured]
    mixed = [Cost(8)] * 60 + [Cost(500)] * 4
    assert len(plan_micro_batches(mixed, 64, overhead=Overhead().measured(0.005, 0.0))) == 1
    assert len(plan_micro_batches(mixed, 64)) == 2
