"""Adaptive workers behind a simulated frontend, with fixed pass times and noise: responses in time, and exchanges.

Expected are the machine's maximum, the best order known afterwards, and classic mode: commit ca8afef simulated them.
"""

from statistics import fmean
from typing import Any

import pytest

from tests.simulated.cases import EMBEDDING, RESNET, Case
from tests.simulated.traffic import Arrival, Clients, closed_loop, poisson
from tests.tables import table

# Of one run each, with the same arrivals: a few per cent are chance.
CHANCE = 0.03
SECONDS, TARGET_S = {RESNET.name: 12.0, EMBEDDING.name: 3.0}, {RESNET.name: 0.5, EMBEDDING.name: 0.2}


@pytest.mark.parametrize("share", [0.8, 3.0])
@pytest.mark.parametrize("case", [RESNET, EMBEDDING], ids=lambda case: case.name)
def test_goodput_holds_under_overload_with_few_exchanges_few_late_and_timely_refusals(case: Case, share: float) -> None:
    seconds = SECONDS[case.name]
    arrivals = poisson(share * case.offline_per_s, seconds, 1, case.kinds)
    simulated = case.adaptive(Clients(arrivals), streams=2, max_latency_s=TARGET_S[case.name], window=128)
    ended = [each for each in simulated.outcomes if each.ended_s < seconds]
    good = sum(each.is_in_time for each in ended)
    # The first micro-batches are small, and exchanges use processor time.
    assert good >= (0.99 * len(ended) if share < 1 else 0.8 * case.offline_per_s * seconds)
    # Noise, and later requests that go first, make a few late.
    assert sum(not each.is_in_time for each in simulated.of("done")) <= 0.02 * len(simulated.outcomes)
    assert all(each.latency_s <= 0.1 for each in simulated.of("Overloaded"))
    # At most one in 50 ms to look for new requests, and two per micro-batch.
    assert simulated.exchanges <= seconds / 0.05 + 2 * len(simulated.micro_batches)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize(("share", "most"), [(0.7, 0.003), (0.8, 0.01), (0.9, 0.04)])
def test_near_capacity_few_are_lost(share: float, most: float, streams: int) -> None:
    """Refused or late, without noise or frontend. The best order known afterwards loses 0, 0.2 and 1.3 % of these."""
    full_s = (RESNET.narrow if streams > 1 else RESNET.wide)[-1][1]
    rate_per_s = share * streams * RESNET.max_items / full_s
    arrivals = poisson(rate_per_s, 2000 / rate_per_s, 1, [Arrival(0.0, length=1)])
    target_s = 12 * RESNET.wide[0][1]
    simulated = RESNET.adaptive(Clients(arrivals), streams, max_latency_s=target_s, is_bare=True)
    assert sum(not outcome.is_in_time for outcome in simulated.outcomes) <= most * len(arrivals)


@pytest.mark.parametrize("case", [RESNET, EMBEDDING], ids=lambda case: case.name)
@pytest.mark.parametrize(("clients", "most"), [(1, 1.1), (64, 0.2)])
def test_exchanges_of_a_lone_client_are_one_a_request_and_of_many_shared(case: Case, clients: int, most: float) -> None:
    """Without a target, no exchange looks for new requests while a micro-batch runs."""
    simulated = case.adaptive(closed_loop(clients, SECONDS[case.name], case.kinds), streams=2)
    assert simulated.exchanges <= most * len(simulated.outcomes)


@pytest.mark.parametrize("streams", [1, 2])
@table(
    # Closed loops of so many clients, and Poisson arrivals at a share of what the machine can do.
    *((RESNET, 1, 27.7, 0.0357), (RESNET, 64, 37.6, 1.6660), (RESNET, 0.9, 34.9, 0.2714)),
    *((EMBEDDING, 1, 159.2, 0.0060), (EMBEDDING, 64, 389.0, 0.1623), (EMBEDDING, 0.9, 401.6, 0.3998)),
)
def test_speed_is_classic_modes(case: Any, load: float, per_s: float, mean_s: float, streams: int) -> None:
    """Classic mode's figures are of the better of batches of 16 and 32, one in flight, nothing overlapped."""
    seconds = SECONDS[case.name]
    arrivals = poisson(load * case.offline_per_s, seconds, 1, case.kinds)
    clients = Clients(arrivals) if load < 1 else closed_loop(int(load), seconds, case.kinds)
    outcomes = case.adaptive(clients, streams).outcomes
    assert {end for outcome in outcomes for end in outcome.ends} == {"done"}
    from_s, span_s = 0.15 * seconds, 0.85 * seconds
    answered = sum(from_s <= outcome.ended_s < seconds for outcome in outcomes)
    took_s = [outcome.latency_s for outcome in outcomes if from_s <= outcome.arrival.at_s < seconds]
    # The span's edges may cut a micro-batch off.
    assert answered / span_s >= (1 - CHANCE) * per_s - case.max_items / span_s
    assert fmean(took_s) <= (1 + CHANCE) * mean_s
