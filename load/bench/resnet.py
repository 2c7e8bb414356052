"""Image classification with equal weights: TorchServe's image_classifier, ours in both modes, a loop in process."""

from collections.abc import Iterator

from deploy.sandbox import run_server
from load.bench import archives, samples
from load.bench.archives import ADAPTIVE, BATCH, CLASSIC, CPU_ONLY, STOCK, WINDOW
from load.bench.contender import Contender, Loop, register, start_loop
from load.bench.rounds import Bench, Comparison
from load.bench.table import Row
from load.generate import ClosedLoop

IN_PROCESS = "in process"


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
