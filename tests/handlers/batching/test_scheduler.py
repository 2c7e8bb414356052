"""The scheduler in simulated time, of Poisson, bursty and adversarial arrivals, and its model of the engine."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from handlers.batching.engine import LatencyModel, Streams
from handlers.batching.pending import Entry, Pending
from handlers.batching.policy import Policy
from handlers.batching.request_queue import AGING_TARGETS
from handlers.batching.scheduler import MOST_TURN, Scheduler
from handlers.config import HandlerConfig, SchedulingConfig
from handlers.pipeline.micro_batches import OVERHEAD
from handlers.protocol.requests import Cost
from handlers.protocol.responses import OneItem
from tests.handlers.batching.simulated import AdaptiveWorker, Arrival, Clients, Machine, Simulated, poisson
from tests.tables import table

FIXED_S, TOKEN_S = 0.002, 0.0001
NARROW = 1.8


def true_s(tokens: int) -> float:
    return FIXED_S + TOKEN_S * tokens


# Items of length 10 that the engine does in a second, in full micro-batches of 16.
CAPACITY_PER_S = 16 / true_s(160)


def model(times: float = 1.0) -> LatencyModel:
    return LatencyModel([(10, times * true_s(10)), (1000, times * true_s(1000))])


def draw_arrivals(lengths: Sequence[int], **more: st.SearchStrategy[float]) -> st.SearchStrategy[list[Arrival]]:
    shared = {"at_s": st.floats(0, 0.3), "length": st.sampled_from(lengths), "items": st.integers(1, 5)}
    shared |= {"priority": st.sampled_from([None, 1, 2, 3]), "decode_s": st.sampled_from([0.0, 0.001, 0.05])}
    return st.lists(st.builds(Arrival, **shared, **more), max_size=40)


def simulate(arrivals: Any, policy: Any, engine_s: Any = true_s, streams: int = 1, believed: Any = (1, 1)) -> Simulated:
    """Run until nothing is left to happen; `believed` has the factors by which times are overestimated at first."""
    engine = Streams(model(believed[0]), model(believed[1] * NARROW) if streams > 1 else None, streams)
    machine = Machine(engine_s, lambda tokens: NARROW * engine_s(tokens), streams)
    return AdaptiveWorker(Clients(arrivals), Scheduler(policy, engine), machine).run()


POLICY = Policy(max_latency_s=0.2, max_items=16, priority_levels=3, default_priority=2)
# It rejects no request for lack of time.
NO_TARGET = replace(POLICY, max_latency_s=inf, max_queue_items=10**6)
ARRIVALS = draw_arrivals([1, 8, 64, 512], timeout_s=st.sampled_from([0.001, 0.05, 0.5, inf]))
CHOICES: dict[str, Any] = {
    **{"max_latency_s": [0.01, 0.1, 1.0], "max_items": range(1, 17), "max_tokens": [None, 1, 256]},
    **{"priority_levels": [3], "default_priority": [2], "queue_timeout_s": [0.02, 0.5, inf]},
    **{"is_late_rejected": [False, True], "max_queue_items": [1, 10, 512]},
}
POLICIES = st.builds(Policy, **{name: st.sampled_from(values) for name, values in CHOICES.items()})


@given(ARRIVALS, POLICIES, st.sampled_from([1, 2, 3]))
def test_any_traffic_ends_once_and_runs_once_within_the_limits(arrivals: Any, policy: Policy, streams: int) -> None:
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


REQUESTS = st.lists(st.tuples(st.floats(0, 0.5), st.sampled_from([1, 10, 100])), min_size=1, max_size=40)


@given(REQUESTS, st.floats(0.02, 0.3), st.sampled_from([1, 2]))
def test_deadlines_are_met_that_an_engine_a_third_as_fast_could_meet(requests: Any, max_s: float, streams: int) -> None:
    """One item after the other by deadline is optimal without batching; where it holds at a third, so must ours."""
    ended_s = 0.0
    for at_s, length in sorted(requests):
        ended_s = max(ended_s, at_s) + 3 * true_s(length)
        assume(ended_s <= at_s + max_s)
    policy = replace(POLICY, max_latency_s=max_s)
    simulated = simulate([Arrival(at_s, length) for at_s, length in requests], policy, streams=streams)
    assert all(outcome.is_in_time for outcome in simulated.outcomes)


def test_mixed_lengths_run_like_with_like() -> None:
    blocker = Arrival(0.0, length=100)
    mixed = [Arrival(0.001, length=length) for length in (10, 400, 10, 400, 10, 400)]
    simulated = simulate([blocker, *mixed], replace(POLICY, max_latency_s=2.0))
    lengths = [{simulated.outcomes[index].arrival.length for index in batch} for _, batch in simulated.micro_batches]
    assert all(len(each) == 1 for each in lengths) and (1, 3, 5) in [indices for _, indices in simulated.micro_batches]


def test_who_is_due_first_goes_first_and_a_deadline_in_the_way_before_likeness() -> None:
    blocker = Arrival(0.0, length=100)
    arrivals = [blocker, Arrival(0.001), Arrival(0.002), Arrival(0.003, timeout_s=0.05)]
    simulated = simulate(arrivals, replace(POLICY, max_items=1))
    assert [indices for _, indices in simulated.micro_batches] == [(0,), (3,), (1,), (2,)]
    # By length the short ones would run together first, and the long one, which is due sooner than two of them, last.
    first, due = Arrival(0.001, length=10), Arrival(0.002, length=100, timeout_s=0.038)
    others = [Arrival(0.003, length=10) for _ in range(12)]
    simulated = simulate([blocker, first, due, *others], replace(POLICY, max_latency_s=1.0))
    assert simulated.outcomes[2].is_in_time
    assert [end for outcome in simulated.outcomes for end in outcome.ends] == ["done"] * 15


def test_first_of_many_is_answered_before_the_last() -> None:
    policy = replace(POLICY, max_latency_s=10.0, max_items=1000)
    ended_s = [each.ended_s for each in simulate([Arrival(0.0, length=1000) for _ in range(8)], policy).outcomes]
    assert min(ended_s) < 0.7 * max(ended_s)
    # A micro-batch takes half of the target at most.
    simulated = simulate([Arrival(0.0, length=10, items=200)], replace(policy, max_latency_s=0.1))
    assert 0.04 <= max(ended_s - started_s for started_s, ended_s, _ in simulated.spans) <= 0.05 * 1.001


@pytest.mark.parametrize(("believed", "streams"), [((100, 1), 1), ((1, 100), 2), ((100, 1), 2), ((100, 100), 2)])
def test_engine_taken_for_far_too_slow_is_known_better_within_a_second(believed: Any, streams: int) -> None:
    arrivals = poisson(0.5 * CAPACITY_PER_S, 2.0, 6, [Arrival(0.0)])
    simulated = simulate(arrivals, POLICY, streams=streams, believed=believed)
    assert not [o for o in simulated.outcomes if o.arrival.at_s > 1.0 and not o.is_in_time]
    # And by clients who all allow less than the target.
    hurried = [Arrival(number * 0.02, timeout_s=0.05) for number in range(200)]
    simulated = simulate(hurried, POLICY, believed=believed, streams=streams)
    assert {end for outcome in simulated.outcomes[-50:] for end in outcome.ends} == {"done"}


@pytest.mark.parametrize("streams", [1, 2])
def test_engine_that_turns_slower_keeps_the_target_soon_and_rejects_nobody_once_it_is_fast(streams: int) -> None:
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


def test_request_that_allows_less_than_a_micro_batch_takes_is_rejected_and_no_other() -> None:
    simulated = simulate([Arrival(0.0, timeout_s=0.001), Arrival(0.0)], POLICY)
    assert [outcome.ends for outcome in simulated.outcomes] == [["Overloaded"], ["done"]]
    # A model slower than its target serves one after the other, and a text longer than a micro-batch counts as one.
    slow = (replace(POLICY, max_latency_s=0.001), [Arrival(float(second)) for second in range(5)])
    long = (replace(POLICY, max_latency_s=1.0, max_tokens=10), [Arrival(0.0, length=1000)] * 5)
    for policy, arrivals in (slow, long):
        assert {end for outcome in simulate(arrivals, policy).outcomes for end in outcome.ends} == {"done"}


def test_those_who_are_rejected_one_after_the_other_are_to_come_again_one_after_the_other() -> None:
    simulated = simulate([Arrival(0.0, length=1000) for _ in range(12)], POLICY)
    turns_s = [outcome.retry_after_s for outcome in simulated.of("Overloaded")]
    apart_s = [next_s - turn_s for turn_s, next_s in pairwise(turns_s)]
    assert len(apart_s) >= 4 and apart_s == pytest.approx([true_s(1000)] * len(apart_s), rel=0.1)
    # Many turns end with the longest, and spread over it.
    many = simulate([Arrival(0.0, length=1000) for _ in range(500)], POLICY)
    turns_s, longest_s = [outcome.retry_after_s for outcome in many.of("Overloaded")], MOST_TURN * POLICY.max_latency_s
    assert 0.9 * longest_s < max(turns_s) <= longest_s
    assert sum(turn_s < longest_s / 2 for turn_s in turns_s) > 0.4 * len(turns_s)


@pytest.mark.parametrize("hopeless", [Arrival(0.0, timeout_s=0.001), Arrival(0.0, length=100_000)], ids=str)
def test_requests_that_can_never_be_in_time_change_nothing_for_others(hopeless: Arrival) -> None:
    others = [Arrival(0.0, length=1000) for _ in range(8)]
    alone, beside = (simulate([*others[:2], *flood, *others[2:]], POLICY) for flood in ([], [hopeless] * 300))
    theirs = [each.retry_after_s for each in beside.of("Overloaded") if each.arrival in others]
    assert theirs == pytest.approx([each.retry_after_s for each in alone.of("Overloaded")])
    assert all(0 < each.retry_after_s < 1000 * MOST_TURN for each in beside.of("Overloaded"))


@pytest.mark.parametrize(("is_late_rejected", "end"), [(True, "expired"), (False, "done")])
def test_request_that_waited_too_long_ends_as_timeout_action_says(is_late_rejected: bool, end: str) -> None:
    policy = replace(POLICY, max_latency_s=10.0, max_items=1, queue_timeout_s=0.01, is_late_rejected=is_late_rejected)
    simulated = simulate([Arrival(0.0, length=1000), Arrival(0.001), Arrival(0.095)], policy)
    assert [outcome.ends for outcome in simulated.outcomes] == [["done"], [end], ["done"]]
    if end == "done":
        # It runs after the one that came later and is not late.
        assert simulated.outcomes[1].ended_s > simulated.outcomes[2].ended_s


def test_flood_of_low_priority_leaves_the_first_its_latency_and_its_admission() -> None:
    tenant = poisson(0.2 * CAPACITY_PER_S, 2.0, 4, [Arrival(0.0, priority=1)])
    flood = poisson(2 * CAPACITY_PER_S, 2.0, 5, [Arrival(0.0, priority=3)])
    alone, beside = (
        sorted(each.latency_s for each in simulate(arrivals, POLICY).of("done") if each.arrival.priority == 1)
        for arrivals in (tenant, [*tenant, *flood])
    )
    assert len(beside) == len(alone) == len(tenant)
    # A micro-batch of the flood's that has just started must end first, and no more.
    percentile = int(0.99 * len(tenant))
    assert beside[percentile] <= alone[percentile] + true_s(160) + FIXED_S
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


@table(
    *(({}, 2, inf, inf), ({"latency_target_ms": 500, "default_priority": 3}, 3, 0.5, 2.0)),
    ({"latency_target_ms": 500, "queue_timeout_ms": 300}, 2, 0.5, 0.3),
    # Of an even number the middle is the more urgent one.
    ({"queue_timeout_ms": 300, "priority_levels": 4}, 2, inf, 0.3),
)
def test_policy_is_that_of_the_settings(scheduling: Any, level: int, latency_s: float, queue_timeout_s: float) -> None:
    section = SchedulingConfig(**{"priority_levels": 3, **scheduling})
    policy = Policy.of(HandlerConfig(max_batch_items=4, max_batch_tokens=50, scheduling=section), OVERHEAD)
    assert (policy.max_latency_s, policy.queue_timeout_s) == (latency_s, queue_timeout_s)
    assert (policy.default_priority, policy.max_items, policy.max_tokens) == (level, 4, 50)


@table((4, true_s(40)), (32, NARROW * (FIXED_S + 160 * TOKEN_S)))
def test_few_items_are_expected_on_the_whole_idle_engine_and_many_on_its_streams(items: int, seconds: float) -> None:
    scheduler = Scheduler(POLICY, Streams(model(), model(NARROW), 2))
    assert (scheduler.ready_s, scheduler.queue.oldest_s(1.0)) == (0.0, 0.0)
    request = Pending(OneItem(), [Entry(cost=Cost(10)) for _ in range(items)], 0.0)
    assert scheduler.admit(request, 10.0 * items) is None
    for slot in request.slots:
        scheduler.queue.end_decoding(slot)
    assert scheduler.ready_s == pytest.approx(seconds) and scheduler.queue.oldest_s(1.0) == 1.0


@given(draw_arrivals([1, 8, 64, 5120]), st.sampled_from([1, 2]), st.sampled_from([1.0, 1000.0]))
def test_without_a_target_all_are_answered(arrivals: list[Arrival], streams: int, believed: float) -> None:
    simulated = simulate(arrivals, NO_TARGET, streams=streams, believed=(believed, believed))
    assert {end for outcome in simulated.outcomes for end in outcome.ends} <= {"done"}


def test_without_a_target_only_who_finds_the_queue_full_or_names_a_time_is_rejected() -> None:
    arrivals = [Arrival(0.0, length=5000), Arrival(0.001, timeout_s=0.1), *[Arrival(0.002)] * 22]
    simulated = simulate(arrivals, replace(NO_TARGET, max_queue_items=20))
    ends = [end for outcome in simulated.outcomes for end in outcome.ends]
    assert ends == ["done", "Overloaded", *["done"] * 20, *["QueueFull"] * 2]
    # Others have a timeout of ten seconds, and arrive faster than the engine can serve them.
    hurried = [Arrival(number * 0.9 / CAPACITY_PER_S, timeout_s=10.0) for number in range(1000)]
    simulated = simulate([*hurried, Arrival(0.1)], NO_TARGET)
    (outcome,) = [each for each in simulated.outcomes if each.arrival.timeout_s == inf]
    assert outcome.latency_s < 0.2


@pytest.mark.parametrize("streams", [1, 2])
def test_without_a_target_micro_batches_are_full_and_in_order_however_long_items_have_waited(streams: int) -> None:
    """Requests at twice the capacity for a second and a half, which age to different degrees."""
    arrivals = [Arrival(number * 0.002, length=40) for number in range(750)]
    simulated = simulate(arrivals, replace(NO_TARGET, priority_levels=1, default_priority=1), streams=streams)
    sizes = [len(indices) for _, indices in simulated.micro_batches]
    # The first ones find few, and the last ones share what is left.
    assert set(sizes[10 * streams : -6 * streams]) == {16}
    starts = {index: at_s for at_s, indices in simulated.micro_batches for index in indices}
    assert sorted(starts, key=lambda index: (starts[index], index)) == list(range(750))


TOKENS = (10, 40, 160, 1000)


def learn(known: LatencyModel, times: float, count: int, sizes: Sequence[int] = TOKENS, within: float = 0.15) -> None:
    """Observe micro-batches of an engine so many times slower, with 5 % of noise: then all sizes are known."""
    chosen = random.Random(0)
    for number in range(count):
        size = sizes[number % len(sizes)]
        known.observe(size, times * true_s(size) * chosen.lognormvariate(0.0, 0.05))
    for tokens in TOKENS:
        assert known.line.predict_s(tokens) == pytest.approx(times * true_s(tokens), rel=within), tokens


def test_engine_that_drifts_is_known_soon_and_large_micro_batches_after_a_long_spell_of_small_ones() -> None:
    for times in (1 / 3, 3.0):
        known = model()
        learn(known, 1.0, 200)
        learn(known, times, 200)
    known = model()
    learn(known, 1.0, 100)
    learn(known, 1.0, 2000, sizes=[10], within=0.3)
