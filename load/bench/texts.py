"""Sentence embedding, texts of mixed length: padded as the usual handler does it, ours, and all sorted in process."""

from collections.abc import Iterator
from dataclasses import replace

from deploy.sandbox import started
from load.bench import archives, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Loop, loop_process, registered
from load.bench.rounds import Bench, Comparison
from load.bench.table import Row
from load.generate import ClosedLoop

EMBEDDING = "sentence-embedding"
PADDED, SORTED, OURS = "padded to 256, fp32", "all sorted, in process", "ours"
# Clients with one text a request: as many as the window. Clients with lists, and texts of a list: the most items that a
# request may hold.
CLIENTS, LIST_CLIENTS, LIST = 64, 4, 64
# Texts of a micro-batch of the loops.
BATCH = 32


def rows(bench: Bench) -> Iterator[Row]:
    """Measure one text a request, and lists."""
    built = archives.build(bench, EMBEDDING, bench.work)
    every = samples.texts()
    with started(bench.work, extra=CPU_ONLY) as server, loop_process("texts", built) as process:
        single = registered(server, EMBEDDING, OURS, samples.singles(every), WINDOW)
        lists = replace(single, inputs=samples.lists(every, LIST), items=LIST)
        loops = [Loop(PADDED, process, "padded", BATCH), Loop(SORTED, process, "sorted", BATCH)]
        bench.settle([single], ClosedLoop(CLIENTS))
        bench.settle([lists, *loops], ClosedLoop(LIST_CLIENTS))
        comparisons = [
            Comparison(ClosedLoop(CLIENTS), [single, *loops]),
            Comparison(ClosedLoop(LIST_CLIENTS), [lists, *loops], f"{LIST_CLIENTS} clients, lists of {LIST}"),
        ]
        results = bench.measure(comparisons)
    for comparison in comparisons:
        for theirs in (PADDED, SORTED):
            yield results.row(f"{EMBEDDING}, {comparison}, texts/s", comparison, OURS, theirs)
