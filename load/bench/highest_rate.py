"""The highest Poisson rate within a target, in simulated time: of the scheduler, and above which no schedule goes.

    pass times -> offline throughput -> highest rate of the bound | of the scheduler -> both as shares of offline

The target is 12 latencies of one client, as in load.bench.adaptive, which measures what is served. The bound knows
every arrival beforehand, leaves out whom it likes and works without a gap (tests.simulated.clairvoyant): a rate
above it is held by no schedule on such a machine. Both spend what decoding and an exchange with TorchServe take.
"""

from dataclasses import replace

from load.bench.progress import progress
from load.bench.rounds import Rounds
from load.bench.table import render_cells
from tests.simulated.cases import EMBEDDING, RESNET, Case
from tests.simulated.clairvoyant import fewest_out_of_time, highest_rate, least_token_s
from tests.simulated.traffic import Recorded, kinds, poisson

# The target in latencies of one client, and the share of requests that must be in time: those of load.bench.adaptive.
SINGLES, SHARE = 12.0, 0.99
# Requests at each rate, chosen: twenty lie beyond the 99th percentile.
REQUESTS = 2000
COLUMNS = ("simulated", "target ms", "offline /s", "no schedule above", "1 stream", "2 streams")


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:  # noqa: ARG001
    """Simulate both cases on pinned times; rounds and durations are those of measurements, and say nothing here."""
    return render_cells(COLUMNS, [row(case) for case in (RESNET, EMBEDDING)], is_markdown=is_markdown)


def row(case: Case) -> tuple[str, ...]:
    """Write one case: shares of the offline throughput, of the bound and of the scheduler with one and two streams."""
    mean = sum(case.lengths) / len(case.lengths)
    single_s = case.passes.wide_s(int(mean)) + case.decode_s + case.exchange_s
    target_s = SINGLES * single_s
    rates = [highest_rate(held, 1.1 * case.offline_per_s, SHARE) for held in (
        lambda rate_per_s: bound(case, rate_per_s, target_s),
        lambda rate_per_s: held_by_scheduler(case, rate_per_s, target_s, 1),
        lambda rate_per_s: held_by_scheduler(case, rate_per_s, target_s, 2),
    )]  # fmt: skip
    shares = [f"{rate_per_s / case.offline_per_s:.2f}" for rate_per_s in rates]
    progress(f"{case.name}: {', '.join(shares)} of offline")
    return (case.name, f"{1000 * target_s:.0f}", f"{case.offline_per_s:.1f}", *shares)


def bound(case: Case, rate_per_s: float, target_s: float) -> float:
    """Give the share of requests in time that no schedule exceeds at this rate."""
    arrivals = _traffic(case, rate_per_s).arrivals
    most_tokens = case.max_tokens or case.max_items * max(case.lengths)
    token_s = least_token_s(case.passes, target_s, most_tokens)
    cores = case.machine(1).cores
    out = fewest_out_of_time(arrivals, target_s - case.exchange_s, token_s, case.decode_s / cores)
    return 1 - out / len(arrivals)


def held_by_scheduler(case: Case, rate_per_s: float, target_s: float, streams: int) -> float:
    """Give the share of requests that an adaptive worker answers in time at this rate, as their clients see it."""
    outcomes = case.adaptive(_traffic(case, rate_per_s), streams, max_latency_s=target_s - case.exchange_s).outcomes
    return sum(each.ends == ["done"] and each.latency_s <= target_s for each in outcomes) / len(outcomes)


def _traffic(case: Case, rate_per_s: float) -> Recorded:
    traffic = poisson(rate_per_s, REQUESTS / rate_per_s, 1, kinds(case.lengths, case.decode_s))
    return replace(traffic, arrivals=traffic.first())
