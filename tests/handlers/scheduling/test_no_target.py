"""The scheduler without a latency target, in simulated time: nobody is refused or overtaken for want of time."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.config import HandlerConfig, SchedulingConfig
from handlers.pipeline.micro_batches import OVERHEAD
from handlers.scheduling.batch_size import TUNING
from handlers.scheduling.policy import Policy
from handlers.scheduling.request_queue import AGING_TARGETS
from tests.handlers.scheduling.simulation import FIXED_S, TOKEN_S, simulate, true_s
from tests.handlers.scheduling.test_scheduler import CAPACITY_PER_S
from tests.simulated.traffic import Arrival

POLICY = Policy(max_latency_s=inf, max_items=16, priority_levels=3, default_priority=2, max_queue_items=10**6)


@pytest.mark.parametrize(
    ("scheduling", "latency_s", "queue_timeout_s"),
    [
        ({}, inf, inf),
        ({"max_latency_ms": 500}, 0.5, 2.0),
        ({"max_latency_ms": 500, "queue_timeout_ms": 300}, 0.5, 0.3),
        ({"max_latency_ms": None}, inf, inf),
        ({"max_latency_ms": None, "queue_timeout_ms": 300}, inf, 0.3),
    ],
)
def test_policy_without_a_target_has_no_limit_of_waiting_but_one_that_was_named(
    scheduling: dict[str, float | None], latency_s: float, queue_timeout_s: float
) -> None:
    config = HandlerConfig(scheduling=SchedulingConfig(**scheduling))  # type: ignore[arg-type]
    policy = Policy.of(config, OVERHEAD)
    assert (policy.max_latency_s, policy.queue_timeout_s) == (latency_s, queue_timeout_s)
    assert policy.nominal_latency_s == 0.5


@given(
    st.lists(
        st.builds(
            Arrival,
            at_s=st.floats(0, 0.3),
            length=st.sampled_from([1, 8, 64, 5120]),
            priority=st.sampled_from([None, 1, 2, 3]),
            items=st.integers(1, 5),
            decode_s=st.sampled_from([0.0, 0.001, 0.05]),
        ),
        max_size=40,
    ),
    st.sampled_from([1, 2]),
    st.sampled_from([1.0, 1000.0]),
)
def test_scheduler_without_a_target_answers_everybody_whatever_it_believes(
    arrivals: list[Arrival], streams: int, believed: float
) -> None:
    simulated = simulate(arrivals, POLICY, streams=streams, believed=(believed, believed))
    assert {end for outcome in simulated.outcomes for end in outcome.ends} <= {"done"}


def test_scheduler_without_a_target_refuses_only_who_finds_the_queue_full_and_who_names_a_time() -> None:
    policy = replace(POLICY, max_queue_items=20)
    blocker = Arrival(0.0, length=5000)
    hurried = Arrival(0.001, timeout_s=0.1)
    simulated = simulate([blocker, hurried, *[Arrival(0.002)] * 22], policy)
    assert [outcome.ends for outcome in simulated.outcomes] == [
        ["done"],
        ["Overloaded"],
        *[["done"]] * 20,
        *[["QueueFull"]] * 2,
    ]


@pytest.mark.parametrize("streams", [1, 2])
def test_scheduler_without_a_target_fills_micro_batches_however_long_their_items_have_waited(streams: int) -> None:
    """Twice as many come as can be served, for three seconds: who aged to another degree shares their micro-batch."""
    policy = replace(POLICY, priority_levels=1, default_priority=1)
    arrivals = [Arrival(number * 0.002, length=40) for number in range(1500)]
    simulated = simulate(arrivals, policy, streams=streams)
    sizes = [len(indices) for _, indices in simulated.micro_batches]
    # The first ones find few, and the last ones share what is left.
    assert set(sizes[10 * streams : -6 * streams]) == {16}
    # First come is first served.
    starts = {index: at_s for at_s, indices in simulated.micro_batches for index in indices}
    assert sorted(starts, key=lambda index: (starts[index], index)) == list(range(1500))


@pytest.mark.parametrize("priority", [2, 3])
def test_scheduler_without_a_target_never_starves_a_lower_priority(priority: int) -> None:
    policy = replace(POLICY, max_items=4)
    # More than the engine can do: a queue of first ones is always there.
    flood = [Arrival(number * 0.9 * true_s(40) / 4, priority=1) for number in range(5_000)]
    simulated = simulate([*flood, Arrival(0.5, priority=priority)], policy)
    low = next(outcome for outcome in simulated.outcomes if outcome.arrival.priority == priority)
    assert low.ends == ["done"]
    # What had come before it gained the first level is done before it.
    gained_s = (priority - 1) * AGING_TARGETS * POLICY.nominal_latency_s
    assert gained_s < low.latency_s <= 1.2 * gained_s


def test_scheduler_without_a_target_is_courteous_to_a_more_urgent_priority() -> None:
    policy = replace(POLICY, max_items=1000)
    simulated = simulate([Arrival(0.0, priority=1), Arrival(0.05, length=10, items=200, priority=3)], policy)
    courteous = int((TUNING.courteous_share * POLICY.nominal_latency_s - FIXED_S) / (10 * TOKEN_S))
    assert [len(indices) for _, indices in simulated.micro_batches][1] == courteous
    alone = simulate([Arrival(0.05, length=10, items=200, priority=3)], policy)
    assert len(alone.micro_batches[0][1]) > 3 * courteous


def test_scheduler_without_a_target_serves_who_names_no_time_beside_those_who_do() -> None:
    """Everybody else allows ten seconds, and they come faster than they can be served: nobody waits for all of them."""
    hurried = [Arrival(number * 0.9 / CAPACITY_PER_S, timeout_s=10.0) for number in range(1500)]
    unhurried = Arrival(0.1)
    simulated = simulate([*hurried, unhurried], POLICY)
    (outcome,) = [each for each in simulated.outcomes if each.arrival.timeout_s == inf]
    assert outcome.latency_s < 0.2
