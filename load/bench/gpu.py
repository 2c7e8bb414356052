"""Images, texts and translation on a GPU: ours over HTTP, in bf16, against loops in process.

Ours is one process of deploy.hosts.serve: it needs no Java. The loops, of load.bench.gpu_loops, have no server: an
application's own code, eager, compiled and on CUDA graphs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from load import LoadError
from load.bench import archives, samples
from load.bench.archives import WINDOW
from load.bench.contender import Contender, Endpoint, Loop, start_loop
from load.bench.gpu_loops import COMPILED, EAGER, GRAPH, SORTED
from load.bench.hosts import serve_one
from load.bench.rounds import Bench, Comparison, Row
from load.bench.texts import CHECKPOINT, EMBEDDING, LIST, NO_CHECKPOINT, TRANSLATION
from load.generate import ClosedLoop
from load.inputs import Inputs

OURS = "ours"
RESNET = "resnet-152"
CLIENTS = (1, 16, 64)


def measure(bench: Bench) -> Iterator[Row]:
    """Measure 1, 16 and 64 clients; the loops have as many items in a batch."""
    if not torch.cuda.is_available():
        raise LoadError("PyTorch finds no GPU")
    yield from _compare(bench, RESNET, samples.images(), [EAGER, GRAPH])
    yield from _compare(bench, EMBEDDING, samples.singles(samples.texts()), [EAGER])
    if CHECKPOINT.is_dir():
        paragraphs = samples.singles(samples.paragraphs(WINDOW))
        yield from _compare(bench, TRANSLATION, paragraphs, [EAGER], str(CHECKPOINT))
    else:
        bench.remark(NO_CHECKPOINT)


def _compare(bench: Bench, name: str, inputs: Inputs, ways: Sequence[str], weights: str | None = None) -> Iterator[Row]:
    built = archives.build(bench, name, bench.work / name, weights=weights, engine="torch")
    with serve_one(built, inputs, gpu=0) as server, start_loop(f"{name} on a GPU", built) as process:
        ours = Endpoint(OURS, server.url, inputs, process=server)

        def loop(way: str) -> Loop:
            return Loop(way, process, way, WINDOW)

        every: list[Contender] = [ours, *map(loop, ways)]
        bench.settle(every, ClosedLoop(CLIENTS[-1]))
        yield from _rows(bench, name, [Comparison(ClosedLoop(clients), every) for clients in CLIENTS])
        if name == EMBEDDING:
            lists = replace(ours, inputs=samples.lists(samples.texts(), LIST), items=LIST)
            # Each pair by itself: a compiler that fails leaves the rows before it.
            for way in (SORTED, COMPILED):
                pair: list[Contender] = [lists, loop(way)]
                bench.settle(pair, ClosedLoop(LIST))
                yield from _rows(bench, name, [Comparison(ClosedLoop(LIST), pair, f"lists of {LIST}")])


def _rows(bench: Bench, name: str, comparisons: Sequence[Comparison]) -> Iterator[Row]:
    results = bench.measure(comparisons)
    for comparison in comparisons:
        for theirs in comparison.contenders[1:]:
            yield results.row(f"{name}, {comparison}, per s", comparison, OURS, theirs.name)
