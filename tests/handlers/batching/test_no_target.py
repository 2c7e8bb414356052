"""The scheduler without a latency target, in simulated time: it refuses no request for lack of time."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.batching.policy import Policy
from handlers.config import HandlerConfig, SchedulingConfig
from handlers.pipeline.micro_batches import OVERHEAD
from tests.handlers.batching.simulation import CAPACITY_PER_S, draw_arrivals, simulate
from tests.simulated.traffic import Arrival

POLICY = Policy(max_latency_s=inf, max_items=16, priority_levels=3, default_priority=2, max_queue_items=10**6)


@pytest.mark.parametrize(
    ("scheduling", "latency_s", "queue_timeout_s"),
    [
        ({}, inf, inf),
        ({"max_latency_ms": 500}, 0.5, 2.0),
        ({"latency_target_ms": 500, "queue_timeout_ms": 300}, 0.5, 0.3),
        ({"queue_timeout_ms": 300}, inf, 0.3),
    ],
)
def test_policy_without_a_target_has_no_limit_of_waiting_but_one_that_was_named(
    scheduling: dict[str, float], latency_s: float, queue_timeout_s: float
) -> None:
    config = HandlerConfig(scheduling=SchedulingConfig(**scheduling))  # type: ignore[arg-type]
    policy = Policy.of(config, OVERHEAD)
    assert (policy.max_latency_s, policy.queue_timeout_s) == (latency_s, queue_timeout_s)


def test_policy_has_the_middle_priority_and_the_limits_of_a_forward_pass() -> None:
    section = SchedulingConfig(priority_levels=3)
    policy = Policy.of(HandlerConfig(max_batch_items=4, max_batch_tokens=50, scheduling=section), OVERHEAD)
    assert (policy.default_priority, policy.max_items, policy.max_tokens) == (2, 4, 50)


@given(
    draw_arrivals([1, 8, 64, 5120]),
    st.sampled_from([1, 2]),
    st.sampled_from([1.0, 1000.0]),
)
def test_everybody_is_answered_whatever_the_engine_is_taken_for(
    arrivals: list[Arrival], streams: int, believed: float
) -> None:
    simulated = simulate(arrivals, POLICY, streams=streams, believed=(believed, believed))
    assert {end for outcome in simulated.outcomes for end in outcome.ends} <= {"done"}


def test_only_who_finds_the_queue_full_or_names_a_time_is_refused() -> None:
    policy = replace(POLICY, max_queue_items=20)
    arrivals = [Arrival(0.0, length=5000), Arrival(0.001, timeout_s=0.1), *[Arrival(0.002)] * 22]
    assert [outcome.ends for outcome in simulate(arrivals, policy).outcomes] == [
        ["done"],
        ["Overloaded"],
        *[["done"]] * 20,
        *[["QueueFull"]] * 2,
    ]


@pytest.mark.parametrize("streams", [1, 2])
def test_micro_batches_are_full_and_in_the_order_of_arrival_however_long_their_items_have_waited(streams: int) -> None:
    """Requests at twice the capacity for a second and a half, which age to different degrees."""
    policy = replace(POLICY, priority_levels=1, default_priority=1)
    arrivals = [Arrival(number * 0.002, length=40) for number in range(750)]
    simulated = simulate(arrivals, policy, streams=streams)
    sizes = [len(indices) for _, indices in simulated.micro_batches]
    # The first ones find few, and the last ones share what is left.
    assert set(sizes[10 * streams : -6 * streams]) == {16}
    starts = {index: at_s for at_s, indices in simulated.micro_batches for index in indices}
    assert sorted(starts, key=lambda index: (starts[index], index)) == list(range(750))


def test_who_names_no_time_is_served_beside_those_who_do() -> None:
    """Others have a timeout of ten seconds, and arrive faster than the engine can serve them."""
    hurried = [Arrival(number * 0.9 / CAPACITY_PER_S, timeout_s=10.0) for number in range(1000)]
    simulated = simulate([*hurried, Arrival(0.1)], POLICY)
    (outcome,) = [each for each in simulated.outcomes if each.arrival.timeout_s == inf]
    assert outcome.latency_s < 0.2
