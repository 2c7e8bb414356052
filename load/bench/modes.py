"""Adaptive and classic mode under Poisson arrivals.

one archive -> classic, at batch_size 16, and adaptive, without a target and so without refusals for time
    -> Poisson arrivals at shares of classic mode's rate with 64 clients
"""

from collections.abc import Iterator
from itertools import product

from deploy.sandbox import run_server
from load.bench import archives, samples
from load.bench.archives import ADAPTIVE, BATCH, CLASSIC, CPU_ONLY, WINDOW
from load.bench.contender import register
from load.bench.rounds import POISSON_LENGTH, Bench, Comparison, Results
from load.bench.table import Row
from load.generate import ClosedLoop, OpenLoop
from load.schedules import Poisson

MOST_CLIENTS = 64
SHARES = (0.3, 0.6, 0.9)


def measure_poisson(bench: Bench) -> Iterator[Row]:
    built = archives.build(bench, bench.classifier, bench.work)
    for mode in (CLASSIC, ADAPTIVE):
        archives.copy_with(built, mode, mode)
    full, results = ClosedLoop(MOST_CLIENTS), Results()
    with run_server(bench.work, extra=CPU_ONLY) as server:
        classic, adaptive = (
            register(server, mode, mode, samples.images(), size)
            for mode, size in ((CLASSIC, BATCH), (ADAPTIVE, WINDOW))
        )
        bench.settle([classic, adaptive], full)
        for number in bench:
            capacity_per_s = classic.run(full, bench.seconds, bench.seconds / 4).per_s
            for share in SHARES:
                arrivals = OpenLoop(Poisson(share * capacity_per_s, seed=number))
                some = Comparison(arrivals, [classic, adaptive], f"Poisson at {share:.0%}", POISSON_LENGTH)
                bench.compare(number, some, results)
    for share, figure in product(SHARES, ("p50", "p99")):
        at = f"Poisson at {share:.0%}"
        yield results.row(
            f"{bench.classifier}, {ADAPTIVE}, {at}, {figure} in ms", at, ADAPTIVE, CLASSIC, f"{figure}_ms"
        )
