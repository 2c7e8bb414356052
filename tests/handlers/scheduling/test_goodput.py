"""Adaptive workers behind a simulated frontend, with pinned pass times and noise: answers in time, and exchanges.

The loads are those of `tests.simulated.cases`; what they are compared with is the machine's own most, or TorchServe's
classic mode: one batch in flight, nothing overlapped, the better of two batch sizes. Each figure is of one run.
"""

import pytest

from tests.simulated.cases import EMBEDDING, RESNET, Case
from tests.simulated.classic import classic
from tests.simulated.traffic import ClosedLoop, Figures, Recorded, kinds, poisson

SECONDS = {RESNET.name: 12.0, EMBEDDING.name: 3.0}
TARGET_S = {RESNET.name: 0.5, EMBEDDING.name: 0.2}
CHANCE = 0.03


@pytest.mark.parametrize("share", [0.8, 2.0, 3.0])
@pytest.mark.parametrize("case", [RESNET, EMBEDDING], ids=lambda case: case.name)
def test_goodput_holds_under_overload_and_refusals_are_timely_and_few_exchanges(case: Case, share: float) -> None:
    seconds, target_s = SECONDS[case.name], TARGET_S[case.name]
    arrivals = poisson(share * case.offline_per_s, seconds, 1, kinds(case.lengths, case.decode_s))
    simulated = case.adaptive(arrivals, streams=2, max_latency_s=target_s, window=128)
    ended = [each for each in simulated.outcomes if each.ended_s < seconds]
    good, late = sum(each.is_in_time for each in ended), sum(not each.is_in_time for each in simulated.of("done"))
    if share < 1:
        assert good >= 0.99 * len(ended)
    else:
        # The first micro-batches find hardly anything to share them.
        assert good / seconds >= 0.88 * case.offline_per_s
    # The machine's noise, and what comes later and goes first, make a few late.
    assert late <= 0.02 * len(simulated.outcomes)
    assert all(each.latency_s <= 0.1 for each in simulated.of("Overloaded"))
    # At most one in 30 ms to look for newcomers, and two a micro-batch.
    assert simulated.exchanges <= seconds / 0.03 + 2 * len(simulated.micro_batches)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize(("share", "most"), [(0.7, 0.003), (0.8, 0.01), (0.9, 0.04)])
def test_near_capacity_few_are_lost(share: float, most: float, streams: int) -> None:
    """Refused or late, without noise or frontend. The best order known afterwards loses 0, 0.2 and 1.3 % of these."""
    target_s, count, full_s = 12 * RESNET.passes.wide_s(1), 2000, RESNET.machine(streams).narrow_s(RESNET.max_items)
    rate_per_s = share * streams * RESNET.max_items / full_s
    traffic = poisson(rate_per_s, count / rate_per_s, 1, kinds([1]))
    simulated = RESNET.adaptive(traffic, streams, max_latency_s=target_s, is_bare=True)
    lost = sum(not outcome.is_in_time for outcome in simulated.outcomes)
    assert lost <= most * count


@pytest.mark.parametrize(
    ("case", "clients", "most"), [(RESNET, 1, 2.1), (EMBEDDING, 1, 1.3), (RESNET, 64, 0.2), (EMBEDDING, 64, 0.2)]
)
def test_exchanges_of_a_lone_client_are_two_a_request_at_most_and_of_many_shared(
    case: Case, clients: int, most: float
) -> None:
    """While a request of a lone client runs, the worker looks once whether anybody else came."""
    load = ClosedLoop(clients, SECONDS[case.name], kinds(case.lengths, case.decode_s))
    simulated = case.adaptive(load, streams=2)
    assert simulated.exchanges <= most * len(simulated.outcomes)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("load", [1, 16, 64, 0.3, 0.9], ids=["1", "16", "64", "poisson-30", "poisson-90"])
@pytest.mark.parametrize("case", [RESNET, EMBEDDING], ids=lambda case: case.name)
def test_without_a_target_throughput_and_mean_latency_are_classic_modes_or_better(
    case: Case, load: float, streams: int
) -> None:
    def clients() -> ClosedLoop | Recorded:
        sent = kinds(case.lengths, case.decode_s)
        if load >= 1:
            return ClosedLoop(int(load), SECONDS[case.name], sent)
        return poisson(load * case.offline_per_s, SECONDS[case.name], 1, sent)

    span_s = 0.15 * SECONDS[case.name], SECONDS[case.name]
    limits = {"max_items": case.max_items, "max_tokens": case.max_tokens}
    peers = [Figures.of(classic(clients(), case.machine(1), size, **limits), *span_s) for size in (16, 32)]
    simulated = case.adaptive(clients(), streams)
    ours = Figures.of(simulated.outcomes, *span_s)
    assert {end for outcome in simulated.outcomes for end in outcome.ends} == {"done"}
    # The span's edges may cut a micro-batch off.
    edge_per_s = case.max_items / (span_s[1] - span_s[0])
    assert ours.per_s >= (1 - CHANCE) * max(peer.per_s for peer in peers) - edge_per_s
    assert ours.mean_s <= (1 + CHANCE) * min(peer.mean_s for peer in peers)
