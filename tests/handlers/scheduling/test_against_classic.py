"""Without a target, adaptive mode against classic mode's batches in simulated time, on pinned pass times.

One batch in flight, nothing overlapped, max_batch_delay 1 ms: that is classic; the better of two batch sizes counts.
What is compared are figures of one run each with the same arrivals, noise included: a few per cent are chance.
"""

from collections.abc import Callable

import pytest

from tests.simulated.cases import EMBEDDING, RESNET, Case
from tests.simulated.classic import classic
from tests.simulated.traffic import Clients, ClosedLoop, Figures, kinds, poisson

SECONDS = {RESNET.name: 12.0, EMBEDDING.name: 3.0}
CHANCE = 0.03


def closed(clients: int) -> Callable[[Case], Clients]:
    return lambda case: ClosedLoop(clients, SECONDS[case.name], kinds(case.lengths, case.decode_s))


def open_loop(share: float) -> Callable[[Case], Clients]:
    def clients(case: Case) -> Clients:
        return poisson(share * case.offline_per_s, SECONDS[case.name], 1, kinds(case.lengths, case.decode_s))

    return clients


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize(
    "load",
    [closed(1), closed(4), closed(16), closed(64), open_loop(0.3), open_loop(0.6), open_loop(0.9)],
    ids=["1", "4", "16", "64", "poisson-30", "poisson-60", "poisson-90"],
)
@pytest.mark.parametrize("case", [RESNET, EMBEDDING], ids=lambda case: case.name)
def test_adaptive_without_a_target_has_classic_modes_throughput_and_mean_latency_or_better(
    case: Case, load: Callable[[Case], Clients], streams: int
) -> None:
    span_s = 0.15 * SECONDS[case.name], SECONDS[case.name]
    machine = case.machine(1)
    peers = [
        Figures.of(
            classic(load(case), machine, batch_size, max_items=case.max_items, max_tokens=case.max_tokens), *span_s
        )
        for batch_size in (16, 32)
    ]
    simulated = case.adaptive(load(case), streams)
    ours = Figures.of(simulated.outcomes, *span_s)
    assert {end for outcome in simulated.outcomes for end in outcome.ends} == {"done"}
    # The span's edges may cut a micro-batch off.
    edge_per_s = case.max_items / (span_s[1] - span_s[0])
    assert ours.per_s >= (1 - CHANCE) * max(peer.per_s for peer in peers) - edge_per_s
    assert ours.mean_s <= (1 + CHANCE) * min(peer.mean_s for peer in peers)
