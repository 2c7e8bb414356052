"""Adaptive and classic mode: the basis for the choice of the default.

    one archive -> classic, at its best batch_size, and adaptive, without a target and so without refusals for time
        -> closed loops, and Poisson arrivals at shares of classic mode's rate with 64 clients

Only model-config.yaml differs; weights and engine are equal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from deploy.sandbox import run_server
from load.bench import archives, samples
from load.bench.archives import ADAPTIVE, CLASSIC, CPU_ONLY, WINDOW
from load.bench.contender import register
from load.bench.rounds import POISSON_LENGTH, Bench, Comparison, Results
from load.bench.table import Row
from load.bench.texts import EMBEDDING
from load.generate import ClosedLoop, OpenLoop
from load.inputs import Inputs
from load.schedules import Poisson

MOST_CLIENTS = 64


@dataclass(frozen=True, slots=True)
class ModeCase:
    """One model in both modes."""

    name: str  # in examples/models.yaml
    inputs: Inputs
    batch_sizes: Sequence[int]  # to try in classic mode
    clients: Sequence[int]  # of the closed loops
    shares: Sequence[float]  # rates of Poisson arrivals, as shares of classic mode's rate with 64 clients


def compare_modes(bench: Bench, case: ModeCase) -> Iterator[Row]:
    """Measure one model in both modes."""
    store = bench.work / case.name
    built = archives.build(bench, case.name, store)
    for mode in (CLASSIC, ADAPTIVE):
        archives.copy_with(built, mode, mode)
    full, results = ClosedLoop(MOST_CLIENTS), Results()
    with run_server(store, extra=CPU_ONLY) as server:
        classics = [register(server, CLASSIC, CLASSIC, case.inputs, size) for size in case.batch_sizes]
        adaptive = register(server, ADAPTIVE, ADAPTIVE, case.inputs, WINDOW)
        bench.settle([*classics, adaptive], full)
        best = max(classics, key=lambda each: each.run(full, bench.seconds, 0.0).per_s if len(classics) > 1 else 0.0)
        bench.remark(f"{case.name}: classic mode has batch_size {case.batch_sizes[classics.index(best)]}")
        for number in bench:
            for clients in map(ClosedLoop, case.clients):
                bench.compare(number, Comparison(clients, [best, adaptive]), results)
            capacity_per_s = best.run(full, bench.seconds, bench.seconds / 4).per_s
            for share in case.shares:
                arrivals = OpenLoop(Poisson(share * capacity_per_s, seed=number))
                some = Comparison(arrivals, [best, adaptive], f"Poisson at {share:.0%}", POISSON_LENGTH)
                bench.compare(number, some, results)
    for load in map(ClosedLoop, case.clients):
        yield results.row(f"{case.name}, {ADAPTIVE}, {load}, /s", load, ADAPTIVE, CLASSIC)
    for share, figure in product(case.shares, ("p50", "p99")):
        at = f"Poisson at {share:.0%}"
        yield results.row(f"{case.name}, {ADAPTIVE}, {at}, {figure} in ms", at, ADAPTIVE, CLASSIC, f"{figure}_ms")


def measure_poisson(bench: Bench) -> Iterator[Row]:
    """Measure Poisson arrivals at 30, 60 and 90 % of the capacity."""
    yield from compare_modes(bench, ModeCase(bench.classifier, samples.images(), (16,), (), (0.3, 0.6, 0.9)))


def measure_default(bench: Bench) -> Iterator[Row]:
    """Measure closed loops and Poisson arrivals of images and embeddings."""
    loads = (1, 4, 16, 64), (0.1, 0.3, 0.5, 0.6, 0.9)
    half = replace(bench, ends_s=(bench.clock() + bench.ends_s) / 2)
    yield from compare_modes(half, ModeCase(bench.classifier, samples.images(), (8, 16, 32), *loads))
    yield from compare_modes(bench, ModeCase(EMBEDDING, samples.singles(samples.texts()), (16, 32, 64), *loads))
