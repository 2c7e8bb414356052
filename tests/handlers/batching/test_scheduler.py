"""The scheduler in simulated time: Poisson, bursty and adversarial arrivals."""

from collections import Counter
from dataclasses import replace
from itertools import count, pairwise
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from handlers.batching.policy import Policy
from handlers.batching.request_queue import AGING_TARGETS
from handlers.batching.scheduler import MOST_TURN
from tests.handlers.batching.simulation import CAPACITY_PER_S, FIXED_S, draw_arrivals, percentile_s, simulate, true_s
from tests.simulated.traffic import Arrival, poisson

POLICY = Policy(max_latency_s=0.2, max_items=16, priority_levels=3, default_priority=2)

ARRIVALS = draw_arrivals([1, 8, 64, 512], timeout_s=st.sampled_from([0.001, 0.05, 0.5, inf]))
POLICIES = st.builds(
    Policy,
    max_latency_s=st.sampled_from([0.01, 0.1, 1.0]),
    max_items=st.integers(1, 16),
    max_tokens=st.sampled_from([None, 1, 256]),
    priority_levels=st.just(3),
    default_priority=st.just(2),
    queue_timeout_s=st.sampled_from([0.02, 0.5, inf]),
    is_late_rejected=st.booleans(),
    max_queue_items=st.sampled_from([1, 10, 512]),
)


@given(ARRIVALS, POLICIES, st.sampled_from([1, 2, 3]))
def test_any_traffic_ends_once_a_request_and_runs_each_accepted_item_once_within_the_limits(
    arrivals: list[Arrival], policy: Policy, streams: int
) -> None:
    simulated = simulate(arrivals, policy, streams=streams)
    assert all(len(outcome.ends) == 1 for outcome in simulated.outcomes)
    assert {end for o in simulated.outcomes for end in o.ends} <= {"done", "expired", "QueueFull", "Overloaded"}
    ran = Counter(index for _, indices in simulated.micro_batches for index in indices)
    for index, outcome in enumerate(simulated.outcomes):
        assert ran[index] == (outcome.arrival.items if outcome.ends == ["done"] else 0)
    for _, indices in simulated.micro_batches:
        longest = max(simulated.outcomes[index].arrival.length for index in indices)
        assert len(indices) <= policy.max_items
        if policy.max_tokens is not None and len(indices) > 1:
            assert len(indices) * longest <= policy.max_tokens
    for started_s, _, is_wide in simulated.spans:
        at_once = [wide for start_s, end_s, wide in simulated.spans if start_s <= started_s < end_s]
        assert len(at_once) <= (1 if is_wide or any(at_once) else streams)


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.sampled_from([1, 10, 100])), min_size=1, max_size=40),
    st.floats(0.02, 0.3),
    st.sampled_from([1, 2]),
)
def test_every_deadline_is_met_that_an_engine_of_a_third_of_the_speed_could_meet(
    requests: list[tuple[float, int]], max_latency_s: float, streams: int
) -> None:
    """One item after the other by deadline is optimal without batching; where it holds at a third, so must ours."""
    ended_s = 0.0
    for at_s, length in sorted(requests):
        ended_s = max(ended_s, at_s) + 3 * true_s(length)
        assume(ended_s <= at_s + max_latency_s)
    policy = replace(POLICY, max_latency_s=max_latency_s)
    simulated = simulate([Arrival(at_s, length) for at_s, length in requests], policy, streams=streams)
    assert all(outcome.is_in_time for outcome in simulated.outcomes)


def test_mixed_lengths_run_like_with_like() -> None:
    blocker = Arrival(0.0, length=100)
    mixed = [Arrival(0.001, length=length) for length in (10, 400, 10, 400, 10, 400)]
    simulated = simulate([blocker, *mixed], replace(POLICY, max_latency_s=2.0))
    lengths = [{simulated.outcomes[index].arrival.length for index in batch} for _, batch in simulated.micro_batches]
    assert all(len(each) == 1 for each in lengths)
    assert (1, 3, 5) in [indices for _, indices in simulated.micro_batches]


def test_deadline_in_the_way_goes_before_likeness() -> None:
    # By length the short ones would run together first, and the long one, which is due sooner than two of them, last.
    blocker = Arrival(0.0, length=100)
    first, due = Arrival(0.001, length=10), Arrival(0.002, length=100, timeout_s=0.038)
    others = [Arrival(0.003, length=10) for _ in range(12)]
    simulated = simulate([blocker, first, due, *others], replace(POLICY, max_latency_s=1.0))
    assert simulated.outcomes[2].is_in_time
    assert [end for outcome in simulated.outcomes for end in outcome.ends] == ["done"] * 15


def test_who_is_due_first_goes_first() -> None:
    arrivals = [Arrival(0.0, length=100), Arrival(0.001), Arrival(0.002), Arrival(0.003, timeout_s=0.05)]
    simulated = simulate(arrivals, replace(POLICY, max_items=1))
    assert [indices for _, indices in simulated.micro_batches] == [(0,), (3,), (1,), (2,)]


def test_first_of_many_is_answered_before_the_last() -> None:
    policy = replace(POLICY, max_latency_s=10.0, max_items=1000)
    ended_s = [each.ended_s for each in simulate([Arrival(0.0, length=1000) for _ in range(8)], policy).outcomes]
    assert min(ended_s) < 0.7 * max(ended_s)


def test_micro_batch_takes_half_of_the_target_at_most() -> None:
    policy = replace(POLICY, max_latency_s=0.1, max_items=1000)
    simulated = simulate([Arrival(0.0, length=10, items=200)], policy)
    longest_s = max(ended_s - started_s for started_s, ended_s, _ in simulated.spans)
    assert 0.04 <= longest_s <= 0.05 * 1.001


# -- who is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("believed", "streams"), [((100.0, 1.0), 1), ((1.0, 100.0), 2), ((100.0, 1.0), 2), ((100.0, 100.0), 2)]
)
def test_engine_taken_for_far_too_slow_is_known_better_within_a_second(
    believed: tuple[float, float], streams: int
) -> None:
    simulated = simulate(
        poisson(0.5 * CAPACITY_PER_S, 2.0, 6, [Arrival(0.0)]), POLICY, streams=streams, believed=believed
    )
    assert not [o for o in simulated.outcomes if o.arrival.at_s > 1.0 and not o.is_in_time]
    # And by clients who all allow less than the target.
    hurried = [Arrival(number * 0.02, timeout_s=0.05) for number in range(200)]
    simulated = simulate(hurried, POLICY, believed=believed, streams=streams)
    assert {end for outcome in simulated.outcomes[-50:] for end in outcome.ends} == {"done"}


@pytest.mark.parametrize("streams", [1, 2])
def test_engine_that_turns_slower_keeps_the_target_soon_and_refuses_nobody_once_it_is_faster_again(
    streams: int,
) -> None:
    """Other work takes two thirds of the machine for 400 micro-batches; more comes than what is left can do."""
    passes = count()

    def engine_s(tokens: int) -> float:
        return true_s(tokens) * (3 if 100 <= next(passes) < 500 else 1)

    policy = replace(POLICY, max_items=4)
    simulated = simulate(poisson(0.5 * 4 / true_s(40), 9.0, 1, [Arrival(0.0)]), policy, engine_s, streams)
    known_s, faster_s = (simulated.spans[number][0] for number in (300, 500))
    served = [each for each in simulated.of("done") if known_s < each.arrival.at_s < faster_s]
    assert sum(each.is_in_time for each in served) >= 0.98 * len(served) > 500
    assert not [each for each in simulated.outcomes if each.arrival.at_s > faster_s + 0.5 and not each.is_in_time]


def test_engine_that_stood_still_for_a_while_serves_everybody_soon_after() -> None:
    slow = iter(range(6))

    def engine_s(tokens: int) -> float:
        return true_s(tokens) * (1 if next(slow, None) is None else 100)

    policy = replace(POLICY, max_latency_s=0.05)
    simulated = simulate(poisson(0.3 * CAPACITY_PER_S, 8.0, 7, [Arrival(0.0)]), policy, engine_s=engine_s, streams=2)
    still_s = [ended_s for started_s, ended_s, _ in simulated.spans][5]
    assert 1 < still_s < 5.5
    assert not [o for o in simulated.outcomes if o.arrival.at_s > still_s + 2.0 and not o.is_in_time]


def test_request_that_allows_less_than_a_micro_batch_takes_is_refused_and_no_other() -> None:
    simulated = simulate([Arrival(0.0, timeout_s=0.001), Arrival(0.0)], POLICY)
    assert [outcome.ends for outcome in simulated.outcomes] == [["Overloaded"], ["done"]]


def test_model_slower_than_its_target_still_serves_one_after_the_other() -> None:
    policy = replace(POLICY, max_latency_s=0.001)
    simulated = simulate([Arrival(float(second)) for second in range(5)], policy)
    assert [outcome.ends for outcome in simulated.outcomes] == [["done"]] * 5


def test_texts_longer_than_a_micro_batch_should_be_count_as_one_each_and_no_more() -> None:
    policy = replace(POLICY, max_latency_s=1.0, max_tokens=10)
    simulated = simulate([Arrival(0.0, length=1000)] * 5, policy)
    # Micro-batches of ten tokens would be a hundred for each of them.
    assert {end for outcome in simulated.outcomes for end in outcome.ends} == {"done"}


def test_those_who_are_refused_one_after_the_other_are_to_come_again_one_after_the_other() -> None:
    simulated = simulate([Arrival(0.0, length=1000) for _ in range(12)], POLICY)
    turns_s = [outcome.retry_after_s for outcome in simulated.of("Overloaded")]
    assert len(turns_s) >= 5
    for turn_s, next_s in pairwise(turns_s):
        assert next_s - turn_s == pytest.approx(true_s(1000), rel=0.1)


@pytest.mark.parametrize(
    "hopeless", [Arrival(0.0, timeout_s=0.001), Arrival(0.0, length=100_000)], ids=["1 ms", "huge"]
)
def test_requests_that_can_never_be_in_time_change_nothing_for_others(hopeless: Arrival) -> None:
    others = [Arrival(0.0, length=1000) for _ in range(8)]
    alone, beside = (simulate([*others[:2], *flood, *others[2:]], POLICY) for flood in ([], [hopeless] * 300))
    assert [each.retry_after_s for each in beside.of("Overloaded") if each.arrival in others] == pytest.approx(
        [each.retry_after_s for each in alone.of("Overloaded")]
    )
    assert all(0 < each.retry_after_s < 1000 * MOST_TURN for each in beside.of("Overloaded"))


def test_turns_end_with_their_longest_and_spread_over_it() -> None:
    simulated = simulate([Arrival(0.0, length=1000) for _ in range(500)], POLICY)
    turns_s = [outcome.retry_after_s for outcome in simulated.of("Overloaded")]
    longest_s = MOST_TURN * POLICY.max_latency_s
    assert 0.9 * longest_s < max(turns_s) <= longest_s
    assert sum(turn_s < longest_s / 2 for turn_s in turns_s) > 0.4 * len(turns_s)


@pytest.mark.parametrize(("is_late_rejected", "end"), [(True, "expired"), (False, "done")])
def test_request_that_waited_too_long_ends_as_timeout_action_says(is_late_rejected: bool, end: str) -> None:
    policy = replace(POLICY, max_latency_s=10.0, max_items=1, queue_timeout_s=0.01, is_late_rejected=is_late_rejected)
    simulated = simulate([Arrival(0.0, length=1000), Arrival(0.001), Arrival(0.095)], policy)
    assert [outcome.ends for outcome in simulated.outcomes] == [["done"], [end], ["done"]]
    if end == "done":
        # It runs after the one that came later and is not late.
        assert simulated.outcomes[1].ended_s > simulated.outcomes[2].ended_s


# -- priorities ------------------------------------------------------------------------------------------------------


def test_flood_of_low_priority_leaves_the_first_its_latency_and_its_admission() -> None:
    tenant = poisson(0.2 * CAPACITY_PER_S, 2.0, 4, [Arrival(0.0, priority=1)])
    flood = poisson(2 * CAPACITY_PER_S, 2.0, 5, [Arrival(0.0, priority=3)])
    alone, beside = simulate(tenant, POLICY), simulate([*tenant, *flood], POLICY)
    assert len([o for o in beside.of("done") if o.arrival.priority == 1]) == len(tenant)
    # A micro-batch of the flood's that has just started must end first, and no more.
    assert percentile_s(beside, 99, priority=1) <= percentile_s(alone, 99) + true_s(160) + FIXED_S
    # With micro-batches that take half of the target the flood's answers, often overtaken, stray far from predictions.
    tight = simulate([*tenant[::2], *flood], replace(POLICY, max_latency_s=0.04))
    assert {o.ends[0] for o in tight.outcomes if o.arrival.priority == 1} == {"done"}


@pytest.mark.parametrize("max_latency_s", [0.1, inf])
@pytest.mark.parametrize("priority", [2, 3])
def test_endless_first_priority_never_starves_a_lower_one(priority: int, max_latency_s: float) -> None:
    policy = replace(POLICY, max_latency_s=max_latency_s, is_late_rejected=False, max_queue_items=10**6)
    first = poisson(1.5 * CAPACITY_PER_S, 2.0, 1, [Arrival(0.0, priority=1)])
    simulated = simulate([*first, Arrival(0.5, priority=priority)], policy)
    (low,) = (each for each in simulated.outcomes if each.arrival.priority == priority)
    assert low.ends == ["done"]
    assert low.latency_s <= priority * AGING_TARGETS * policy.patience_s + 2 * true_s(160)
