"""Image classification with equal weights: both modes, TorchServe's image_classifier and a loop in process.

Under Poisson arrivals, at shares of classic mode's rate with 64 clients, only model-config.yaml differs.
"""

from collections.abc import Iterator
from itertools import product

from load.bench import archives, samples
from load.bench.archives import ADAPTIVE, BATCH, CLASSIC, CPU_ONLY, STOCK, WINDOW
from load.bench.contender import Contender, Loop, register, start_loop
from load.bench.rounds import POISSON_LENGTH, Bench, Comparison, Results, Row
from load.generate import ClosedLoop, OpenLoop
from load.sandbox import run_server
from load.schedules import Poisson

IN_PROCESS = "in process"
MOST_CLIENTS = 64
SHARES = (0.3, 0.6, 0.9)


def measure(bench: Bench) -> Iterator[Row]:
    built = archives.build(bench, bench.classifier, bench.work)
    kinds = {
        STOCK: (archives.build_stock(built, archives.CLASSIFIERS[built.name], "image_classifier"), BATCH),
        CLASSIC: (archives.copy_with(built, CLASSIC, CLASSIC), BATCH),
        ADAPTIVE: (archives.copy_with(built, ADAPTIVE, ADAPTIVE), WINDOW),
    }
    with run_server(bench.work, extra=CPU_ONLY) as server, start_loop("images", built) as process:
        contenders: list[Contender] = [Loop(IN_PROCESS, process, batch_size=BATCH)]
        for name, (archive, size) in kinds.items():
            contenders.append(register(server, archive, name, samples.images(), size))
        bench.settle(contenders, ClosedLoop(BATCH))
        results = bench.measure([Comparison(ClosedLoop(n), contenders) for n in (BATCH, 1)])
    for load, figure, unit in ((ClosedLoop(BATCH), "per_s", "images/s"), (ClosedLoop(1), "p50_ms", "p50 in ms")):
        for theirs in (STOCK, IN_PROCESS):
            for ours in (CLASSIC, ADAPTIVE):
                yield results.row(f"{bench.classifier}, {ours}, {load}, {unit}", load, ours, theirs, figure)


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
    for share, each in product(SHARES, ("p50", "p99")):
        at = f"Poisson at {share:.0%}"
        yield results.row(f"{bench.classifier}, {ADAPTIVE}, {at}, {each} in ms", at, ADAPTIVE, CLASSIC, f"{each}_ms")
