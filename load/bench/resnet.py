"""Image classification: TorchServe's image_classifier, ours in both modes, and a loop in process, on equal weights."""

from collections.abc import Iterator

from deploy.sandbox import started
from load.bench import archives, samples
from load.bench.archives import ADAPTIVE, BATCH, CLASSIC, CPU_ONLY, STOCK, WINDOW
from load.bench.contender import Contender, Loop, loop_process, registered
from load.bench.rounds import Bench, Comparison
from load.bench.table import Row
from load.generate import ClosedLoop

IN_PROCESS = "in process"


def rows(bench: Bench) -> Iterator[Row]:
    """Measure batches that 16 clients fill, and one client."""
    built = archives.build(bench, bench.classifier, bench.work)
    kinds = {
        STOCK: (archives.stock(built, "image_classifier", archives.CLASSIFIERS[built.name]), BATCH),
        CLASSIC: (archives.variant(built, CLASSIC, CLASSIC), BATCH),
        ADAPTIVE: (archives.variant(built, ADAPTIVE, ADAPTIVE), WINDOW),
    }
    with started(bench.work, extra=CPU_ONLY) as server, loop_process("images", built) as process:
        contenders: list[Contender] = [Loop(IN_PROCESS, process, batch_size=BATCH)]
        for name, (archive, size) in kinds.items():
            contenders.append(registered(server, archive, name, samples.images(), size))
        bench.settle(contenders, ClosedLoop(BATCH))
        results = bench.measure([Comparison(ClosedLoop(n), contenders) for n in (BATCH, 1)])
    for load, figure, unit in ((ClosedLoop(BATCH), "per_s", "images/s"), (ClosedLoop(1), "p50_ms", "p50 in ms")):
        for theirs in (STOCK, IN_PROCESS):
            for ours in (CLASSIC, ADAPTIVE):
                yield results.row(f"{bench.classifier}, {ours}, {load}, {unit}", load, ours, theirs, figure)
