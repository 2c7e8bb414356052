"""Both modes of ours against each other: what the choice of a default rests on.

    one archive -> classic, at its best batch_size, and adaptive, without a target and so without refusals for time
        -> closed loops, and Poisson arrivals at shares of what classic mode has just held with 64 clients

Both have the same weights and engine; only model-config.yaml differs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from deploy.sandbox import started
from load.bench import archives, samples
from load.bench.archives import ADAPTIVE, CLASSIC, CPU_ONLY, WINDOW
from load.bench.contender import registered
from load.bench.rounds import Bench, Comparison, Results
from load.bench.table import Row
from load.generate import ClosedLoop, OpenLoop
from load.inputs import Inputs
from load.schedules import Poisson

MOST_CLIENTS = 64
# Lengths of a measurement of Poisson arrivals: a percentile needs more requests than a rate does.
POISSON_LENGTH = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared.

    Attributes:
        name: of examples/models.yaml.
        inputs: what is sent.
        batch_sizes: those that classic mode is tried with.
        clients: of the closed loops.
        shares: of classic mode's throughput with 64 clients, at which requests arrive by chance.
    """

    name: str
    inputs: Inputs
    batch_sizes: Sequence[int]
    clients: Sequence[int]
    shares: Sequence[float]


def compared(bench: Bench, case: Case) -> Iterator[Row]:
    """Measure one case."""
    store = bench.work / case.name
    built = archives.build(bench, case.name, store)
    for mode in (CLASSIC, ADAPTIVE):
        archives.variant(built, mode, mode)
    full, results = ClosedLoop(MOST_CLIENTS), Results()
    with started(store, extra=CPU_ONLY) as server:
        classics = [registered(server, CLASSIC, CLASSIC, case.inputs, size) for size in case.batch_sizes]
        adaptive = registered(server, ADAPTIVE, ADAPTIVE, case.inputs, WINDOW)
        bench.settle([*classics, adaptive], full)
        best = max(classics, key=lambda each: each.run(full, bench.seconds, 0.0).per_s if len(classics) > 1 else 0.0)
        bench.remark(f"{case.name}: classic mode has batch_size {case.batch_sizes[classics.index(best)]}")
        for number in bench:
            for clients in map(ClosedLoop, case.clients):
                bench.compare(number, Comparison(clients, [best, adaptive]), results)
            capacity_per_s = best.run(full, bench.seconds, bench.seconds / 4).per_s
            for share in case.shares:
                arrivals = OpenLoop(Poisson(share * capacity_per_s, seed=number))
                some = Comparison(arrivals, [best, adaptive], poisson_at(share), POISSON_LENGTH)
                bench.compare(number, some, results)
    for load in map(ClosedLoop, case.clients):
        yield results.row(f"{case.name}, {ADAPTIVE}, {load}, /s", load, ADAPTIVE, CLASSIC)
    for at in map(poisson_at, case.shares):
        for figure in ("p50", "p99"):
            what = f"{case.name}, {ADAPTIVE}, {at}, {figure} in ms"
            yield results.row(what, at, ADAPTIVE, CLASSIC, f"{figure}_ms")


def poisson_at(share: float) -> str:
    """Name Poisson arrivals at a share of the capacity."""
    return f"Poisson at {share:.0%}"


def poisson(bench: Bench) -> Iterator[Row]:
    """Measure Poisson arrivals at 30, 60 and 90 % of the capacity."""
    yield from compared(bench, Case(bench.classifier, samples.images(), (16,), (), (0.3, 0.6, 0.9)))


def default(bench: Bench) -> Iterator[Row]:
    """Measure closed loops and Poisson arrivals, of images and of embeddings."""
    loads = (1, 4, 16, 64), (0.1, 0.3, 0.5, 0.6, 0.9)
    half = replace(bench, ends_s=(bench.clock() + bench.ends_s) / 2)
    yield from compared(half, Case(bench.classifier, samples.images(), (8, 16, 32), *loads))
    texts = samples.singles(samples.texts())
    yield from compared(bench, Case("sentence-embedding", texts, (16, 32, 64), *loads))
