"""The scheduler in simulated time: Poisson, bursty and adversarial arrivals."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from handlers.scheduling.batch_size import TUNING
from handlers.scheduling.policy import Policy
from handlers.scheduling.request_queue import AGING_TARGETS
from tests.handlers.scheduling.simulation import FIXED_S, NARROW, TOKEN_S, simulate, true_s
from tests.simulated.adaptive import Simulated
from tests.simulated.traffic import Arrival

POLICY = Policy(max_latency_s=0.2, max_items=16, priority_levels=3, default_priority=2)
# Items of length 10 that the engine does in a second, in full micro-batches.
CAPACITY_PER_S = 16 / true_s(160)


def poisson(rate_per_s: float, seconds: float, seed: int, **of_each: object) -> list[Arrival]:
    chosen = random.Random(seed)
    arrivals, now_s = [], chosen.expovariate(rate_per_s)
    while now_s < seconds:
        arrivals.append(replace(Arrival(now_s), **of_each))  # type: ignore[arg-type]
        now_s += chosen.expovariate(rate_per_s)
    return arrivals


def percentile_s(simulated: Simulated, percent: float, priority: int | None = None) -> float:
    done = sorted(o.latency_s for o in simulated.of("done") if priority in (None, o.arrival.priority))
    return done[int(len(done) * percent / 100)]


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at_s=st.floats(0, 0.3),
        length=st.sampled_from([1, 8, 64, 512]),
        priority=st.sampled_from([None, 1, 2, 3]),
        timeout_s=st.sampled_from([0.001, 0.05, 0.5, float("inf")]),
        items=st.integers(1, 5),
        decode_s=st.sampled_from([0.0, 0.001, 0.05]),
    ),
    max_size=40,
)
POLICIES = st.builds(
    Policy,
    max_latency_s=st.sampled_from([0.01, 0.1, 1.0]),
    max_items=st.integers(1, 16),
    max_tokens=st.sampled_from([None, 1, 256]),
    priority_levels=st.just(3),
    default_priority=st.just(2),
    queue_timeout_s=st.sampled_from([0.02, 0.5, float("inf")]),
    is_late_rejected=st.booleans(),
    max_queue_items=st.sampled_from([1, 10, 512]),
)
STREAMS = st.sampled_from([1, 2, 3])


@given(ARRIVALS, POLICIES, STREAMS)
def test_scheduler_of_any_traffic_ends_every_request_exactly_once(
    arrivals: list[Arrival], policy: Policy, streams: int
) -> None:
    simulated = simulate(arrivals, policy, streams=streams)
    assert all(len(outcome.ends) == 1 for outcome in simulated.outcomes)
    assert {end for o in simulated.outcomes for end in o.ends} <= {"done", "expired", "QueueFull", "Overloaded"}


@given(ARRIVALS, POLICIES, STREAMS)
def test_scheduler_of_any_traffic_runs_each_accepted_item_once_within_the_limits(
    arrivals: list[Arrival], policy: Policy, streams: int
) -> None:
    simulated = simulate(arrivals, policy, streams=streams)
    ran = [index for _, indices in simulated.micro_batches for index in indices]
    for index, outcome in enumerate(simulated.outcomes):
        assert ran.count(index) == (outcome.arrival.items if outcome.ends == ["done"] else 0)
    for _, indices in simulated.micro_batches:
        longest = max(simulated.outcomes[index].arrival.length for index in indices)
        assert len(indices) <= policy.max_items
        if policy.max_tokens is not None and len(indices) > 1:
            assert len(indices) * longest <= policy.max_tokens


@given(ARRIVALS, POLICIES, STREAMS)
def test_scheduler_of_any_traffic_never_runs_more_at_once_than_there_are_streams(
    arrivals: list[Arrival], policy: Policy, streams: int
) -> None:
    spans = simulate(arrivals, policy, streams=streams).spans
    for started_s, _, is_wide in spans:
        at_once = [wide for start_s, end_s, wide in spans if start_s <= started_s < end_s]
        assert len(at_once) <= (1 if is_wide or any(at_once) else streams)


@given(ARRIVALS, POLICIES, STREAMS)
@settings(max_examples=30)
def test_scheduler_of_the_same_traffic_gives_the_same_schedule(
    arrivals: list[Arrival], policy: Policy, streams: int
) -> None:
    first, second = (simulate(arrivals, policy, streams=streams) for _ in range(2))
    assert (first.micro_batches, first.spans) == (second.micro_batches, second.spans)


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.sampled_from([1, 10, 100])), min_size=1, max_size=40),
    st.floats(0.02, 0.3),
    st.sampled_from([1, 2]),
)
@settings(max_examples=300)
def test_scheduler_meets_every_deadline_that_an_engine_of_a_third_of_its_speed_could_meet(
    requests: list[tuple[float, int]], max_latency_s: float, streams: int
) -> None:
    """One item after the other by deadline is optimal without batching; where it holds at a third, so must ours."""
    slow_s = 3.0
    ended_s = 0.0
    for at_s, length in sorted(requests):
        ended_s = max(ended_s, at_s) + slow_s * true_s(length)
        assume(ended_s <= at_s + max_latency_s)
    policy = replace(POLICY, max_latency_s=max_latency_s)
    simulated = simulate([Arrival(at_s, length) for at_s, length in requests], policy, streams=streams)
    assert all(outcome.is_in_time for outcome in simulated.outcomes)


@pytest.mark.parametrize("streams", [1, 2])
def test_scheduler_of_a_lone_request_starts_it_at_once_on_the_whole_engine(streams: int) -> None:
    (outcome,) = simulate([Arrival(1.0)], POLICY, streams=streams).outcomes
    assert outcome.latency_s == pytest.approx(true_s(10))


def test_scheduler_with_two_streams_halves_what_is_ready_for_them_to_end_together() -> None:
    together = [Arrival(0.0) for _ in range(6)]
    simulated = simulate([*together, Arrival(0.001), Arrival(0.002)], POLICY, streams=2)
    first_end_s = NARROW * true_s(30)
    assert simulated.micro_batches == [
        (0.0, (0, 1, 2)),
        (0.0, (3, 4, 5)),
        (pytest.approx(first_end_s), (6,)),
        (pytest.approx(first_end_s), (7,)),
    ]
    simulated = simulate([*together[:2], Arrival(0.001)], POLICY, streams=3)
    assert simulated.micro_batches == [(0.0, (0,)), (0.0, (1,)), (0.001, (2,))]


@pytest.mark.parametrize(("decode_s", "count"), [(0.001, 1), (0.05, 2)])
def test_scheduler_holds_a_micro_batch_for_what_is_being_decoded_no_longer_than_the_fixed_cost(
    decode_s: float, count: int
) -> None:
    simulated = simulate([Arrival(0.0), Arrival(0.0, decode_s=decode_s)], POLICY)
    assert len(simulated.micro_batches) == count
    assert simulated.micro_batches[0][0] <= FIXED_S * 1.001


def test_scheduler_with_mixed_lengths_runs_like_with_like() -> None:
    blocker = Arrival(0.0, length=100)
    mixed = [Arrival(0.001, length=length) for length in (10, 400, 10, 400, 10, 400)]
    simulated = simulate([blocker, *mixed], replace(POLICY, max_latency_s=2.0))
    assert [indices for _, indices in simulated.micro_batches] == [(0,), (1, 3, 5), (2,), (4,), (6,)]


def test_scheduler_with_a_deadline_in_the_way_runs_unlike_lengths_in_its_order() -> None:
    # By length the short ones would run together first, and the long one, which is due sooner than two of them, last.
    blocker = Arrival(0.0, length=100)
    first, due = Arrival(0.001, length=10), Arrival(0.002, length=100, timeout_s=0.038)
    others = [Arrival(0.003, length=10) for _ in range(12)]
    simulated = simulate([blocker, first, due, *others], replace(POLICY, max_latency_s=1.0))
    assert simulated.outcomes[2].is_in_time
    assert [end for outcome in simulated.outcomes for end in outcome.ends] == ["done"] * 15


@pytest.mark.parametrize("streams", [1, 2])
def test_scheduler_at_three_times_capacity_refuses_before_the_work_and_keeps_its_target(streams: int) -> None:
    capacity_per_s = CAPACITY_PER_S * (streams / NARROW if streams > 1 else 1)
    simulated = simulate(poisson(3 * capacity_per_s, 5.0, seed=1), POLICY, streams=streams)
    done, refused = simulated.of("done"), simulated.of("Overloaded")
    assert len(done) + len(refused) == len(simulated.outcomes)
    assert len(done) / 5.0 > 0.9 * capacity_per_s
    assert percentile_s(simulated, 99) <= POLICY.max_latency_s
    assert max(outcome.latency_s for outcome in refused) == 0


@pytest.mark.parametrize("streams", [1, 2])
def test_scheduler_whose_engine_is_half_as_fast_as_it_believes_still_keeps_its_target(streams: int) -> None:
    arrivals = poisson(2 * CAPACITY_PER_S, 5.0, seed=2)
    simulated = simulate(arrivals, POLICY, engine_s=lambda tokens: 2 * true_s(tokens), streams=streams)
    late = [outcome for outcome in simulated.of("done") if outcome.arrival.at_s > 0.5 and not outcome.is_in_time]
    assert len(late) <= 0.01 * len(simulated.of("done"))


@pytest.mark.parametrize("believed", [(1.0, 100.0), (100.0, 1.0), (100.0, 100.0)])
@pytest.mark.parametrize("streams", [1, 2])
def test_scheduler_that_takes_its_engine_for_far_too_slow_learns_better_within_a_second(
    believed: tuple[float, float], streams: int
) -> None:
    simulated = simulate(poisson(0.5 * CAPACITY_PER_S, 3.0, seed=6), POLICY, streams=streams, believed=believed)
    assert not [o for o in simulated.outcomes if o.arrival.at_s > 1.0 and not o.is_in_time]


@pytest.mark.parametrize("streams", [1, 2])
def test_scheduler_of_an_engine_that_stood_still_for_a_while_serves_everybody_soon_after(streams: int) -> None:
    slow = iter(range(30))

    def engine_s(tokens: int) -> float:
        return true_s(tokens) * (1 if next(slow, None) is None else 100)

    policy = replace(POLICY, max_latency_s=0.05)
    simulated = simulate(poisson(0.3 * CAPACITY_PER_S, 40.0, seed=7), policy, engine_s=engine_s, streams=streams)
    still_s = [ended_s for started_s, ended_s, _ in simulated.spans][29]
    assert not [o for o in simulated.outcomes if o.arrival.at_s > still_s + 2.0 and not o.is_in_time]


def test_scheduler_that_takes_its_engine_for_far_too_slow_learns_better_from_clients_in_a_hurry() -> None:
    hurried = [Arrival(number * 0.02, timeout_s=0.05) for number in range(200)]
    simulated = simulate(hurried, POLICY, believed=(100.0, 100.0), streams=2)
    assert simulated.outcomes[0].ends == ["Overloaded"]
    assert {end for outcome in simulated.outcomes[-50:] for end in outcome.ends} == {"done"}


def test_scheduler_with_texts_longer_than_a_micro_batch_should_be_counts_one_for_each_and_no_more() -> None:
    policy = replace(POLICY, max_latency_s=1.0, max_tokens=10)
    simulated = simulate([Arrival(0.0, length=1000), *[Arrival(0.0, length=1000)] * 4], policy)
    # Micro-batches of ten tokens would be a hundred for each of them.
    assert {end for outcome in simulated.outcomes for end in outcome.ends} == {"done"}


@pytest.mark.parametrize("share", [0.3, 0.6, 0.85])
@pytest.mark.parametrize("streams", [1, 2])
def test_scheduler_below_capacity_refuses_nobody_and_keeps_its_target(share: float, streams: int) -> None:
    simulated = simulate(poisson(share * CAPACITY_PER_S, 5.0, seed=3), POLICY, streams=streams)
    assert len(simulated.of("done")) == len(simulated.outcomes)
    assert percentile_s(simulated, 99) <= POLICY.max_latency_s


def test_scheduler_with_a_flood_of_low_priority_leaves_the_first_tenant_its_latency() -> None:
    tenant = poisson(0.2 * CAPACITY_PER_S, 5.0, seed=4, priority=1)
    flood = poisson(3 * CAPACITY_PER_S, 5.0, seed=5, priority=3)
    alone, beside = simulate(tenant, POLICY), simulate([*tenant, *flood], POLICY)
    assert len([o for o in beside.of("done") if o.arrival.priority == 1]) == len(tenant)
    # A micro-batch of the flood's that has just started must end first, and no more.
    longest_s = true_s(160)
    assert percentile_s(beside, 99, priority=1) <= percentile_s(alone, 99) + longest_s + FIXED_S


def test_scheduler_runs_shorter_micro_batches_while_a_more_urgent_priority_keeps_coming() -> None:
    policy = replace(POLICY, max_latency_s=0.2, max_items=1000, is_late_rejected=False)
    flood = [Arrival(at_s, length=10, items=30, priority=3) for at_s in (0.05, 0.1 + TUNING.courtesy_targets * 0.2)]
    simulated = simulate([Arrival(0.0, priority=1), *flood], policy)
    sizes = [len(indices) for at_s, indices in simulated.micro_batches if at_s < TUNING.courtesy_targets * 0.2]
    courteous = int((TUNING.courteous_share * 0.2 - FIXED_S) / (10 * TOKEN_S))
    assert 5 * courteous > 30 > 2 * courteous
    assert sizes == [1, courteous, courteous, 30 - 2 * courteous]
    # Later they are as long as usual: two, of which none is shorter than ten times the fixed cost.
    assert [len(indices) for _, indices in simulated.micro_batches[len(sizes) :]] == [20, 10]


def test_scheduler_with_costly_micro_batches_is_courteous_for_a_fifth_of_the_engine_at_most() -> None:
    policy = replace(POLICY, max_latency_s=0.04, is_late_rejected=False)
    simulated = simulate([Arrival(0.0, priority=1), Arrival(0.01, length=9, items=12, priority=3)], policy)
    # A sixteenth of the target is hardly more than the fixed cost; five times that hold eight such items, not nine.
    assert [len(indices) for _, indices in simulated.micro_batches] == [1, 8, 4]
    assert true_s(72) < TUNING.courteous_costs * FIXED_S < true_s(81)


def test_scheduler_with_a_flood_of_low_priority_refuses_nobody_of_the_first() -> None:
    """Micro-batches take half of the target, and the flood's answers, often overtaken, stray far from predictions."""
    policy = replace(POLICY, max_latency_s=0.04)
    tenant = poisson(0.1 * CAPACITY_PER_S, 5.0, seed=4, priority=1)
    flood = poisson(2 * CAPACITY_PER_S, 5.0, seed=5, priority=3)
    simulated = simulate([*tenant, *flood], policy)
    assert {o.ends[0] for o in simulated.outcomes if o.arrival.priority == 1} == {"done"}


@given(st.integers(0, 1000), st.sampled_from([2, 3]))
@settings(max_examples=20)
def test_scheduler_under_endless_first_priority_never_starves_a_lower_one(seed: int, priority: int) -> None:
    policy = replace(POLICY, max_latency_s=0.1, is_late_rejected=False)
    # Just within capacity, and everybody is accepted: the low one is overtaken until it has aged.
    first = poisson(0.95 * CAPACITY_PER_S, 3.0, seed, priority=1)
    simulated = simulate([*first, Arrival(0.5, priority=priority)], policy)
    low = next(o for o in simulated.outcomes if o.arrival.priority == priority)
    assert low.ends == ["done"]
    assert low.latency_s <= priority * AGING_TARGETS * policy.max_latency_s + 2 * true_s(160)


@pytest.mark.parametrize(("is_late_rejected", "end"), [(True, "expired"), (False, "done")])
def test_scheduler_with_a_request_that_waited_too_long_does_as_timeout_action_says(
    is_late_rejected: bool, end: str
) -> None:
    policy = replace(POLICY, max_latency_s=10.0, queue_timeout_s=0.01, is_late_rejected=is_late_rejected)
    blocker = Arrival(0.0, length=1000)
    simulated = simulate([blocker, Arrival(0.001), Arrival(0.095)], policy)
    assert [outcome.ends for outcome in simulated.outcomes] == [["done"], [end], ["done"]]
    if end == "done":
        # It runs after the one that came later and is not late, or with it.
        assert simulated.outcomes[1].ended_s >= simulated.outcomes[2].ended_s


def test_scheduler_with_a_full_queue_refuses_the_next() -> None:
    policy = replace(POLICY, max_queue_items=3, max_latency_s=10.0)
    simulated = simulate([Arrival(0.0, length=1000), *[Arrival(0.001)] * 5], policy)
    assert [outcome.ends for outcome in simulated.outcomes] == [["done"]] * 4 + [["QueueFull"]] * 2


def test_scheduler_with_a_client_that_waits_less_than_a_micro_batch_takes_refuses_it_and_no_other() -> None:
    simulated = simulate([Arrival(0.0, timeout_s=0.001), Arrival(0.0)], POLICY)
    assert [outcome.ends for outcome in simulated.outcomes] == [["Overloaded"], ["done"]]


def test_scheduler_of_a_model_slower_than_its_target_still_serves_one_after_the_other() -> None:
    policy = replace(POLICY, max_latency_s=0.001)
    simulated = simulate([Arrival(float(second)) for second in range(5)], policy)
    assert [outcome.ends for outcome in simulated.outcomes] == [["done"]] * 5


def test_scheduler_of_long_work_keeps_a_micro_batch_within_half_of_the_target() -> None:
    policy = replace(POLICY, max_latency_s=0.1, max_items=1000)
    simulated = simulate([Arrival(0.0, length=10, items=200)], policy)
    sizes = [len(indices) for _, indices in simulated.micro_batches]
    assert max(sizes) == int((0.05 - FIXED_S) / (10 * TOKEN_S))


def test_scheduler_answers_who_is_first_before_who_is_last_where_micro_batches_cost_little_by_themselves() -> None:
    policy = replace(POLICY, max_latency_s=10.0, max_items=1000)
    simulated = simulate([Arrival(0.0, length=1000) for _ in range(8)], policy)
    sizes = [len(indices) for _, indices in simulated.micro_batches]
    # Half of what is left, each time: a thousand tokens are worth a micro-batch of their own.
    assert sizes == [4, 2, 1, 1]
