"""Images, texts and translation on a GPU: ours over HTTP, in bf16, against loops in process and TorchServe's handler.

The loops, of load.bench.gpu_loops, have no server: an application's own code in bf16 and in fp32.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch

from deploy.sandbox import run_server
from load.bench import archives, samples
from load.bench.archives import STOCK, WINDOW
from load.bench.contender import Contender, Loop, register, start_loop
from load.bench.gpu_loops import IMAGE_WAYS, TEXT_WAYS, TRANSLATION_WAYS
from load.bench.rounds import Bench, Comparison
from load.bench.table import Row
from load.bench.texts import CHECKPOINT, EMBEDDING, LIST, NO_CHECKPOINT, TRANSLATION
from load.errors import LoadError
from load.generate import ClosedLoop
from load.inputs import Inputs

OURS = "ours"
RESNET = "resnet-152"
WAYS = {RESNET: IMAGE_WAYS, EMBEDDING: TEXT_WAYS, TRANSLATION: TRANSLATION_WAYS}
CLIENTS = (1, 16, 64)


def measure(bench: Bench) -> Iterator[Row]:
    """Measure 1, 16 and 64 clients; the loops have as many items in a batch."""
    if not torch.cuda.is_available():
        raise LoadError("PyTorch finds no GPU")
    yield from _compare(bench, RESNET, samples.images())
    yield from _compare(bench, EMBEDDING, samples.singles(samples.texts()))
    if CHECKPOINT.is_dir():
        yield from _compare(bench, TRANSLATION, samples.singles(samples.paragraphs(WINDOW)), str(CHECKPOINT))
    else:
        bench.remark(NO_CHECKPOINT)


def _compare(bench: Bench, name: str, inputs: Inputs, weights: str | None = None) -> Iterator[Row]:
    built = archives.build(bench, name, bench.work / name, weights=weights, engine="torch")
    with run_server(built.parent) as server, start_loop(f"{name} on a GPU", built) as process:
        ours = register(server, name, OURS, inputs, WINDOW)
        contenders: list[Contender] = [ours, *(Loop(way, process, way, WINDOW) for way in WAYS[name])]
        if name == RESNET:
            stock = archives.build_stock(built, archives.CLASSIFIERS[name], "image_classifier")
            contenders.append(register(server, stock, STOCK, inputs, WINDOW))
        loads = [ClosedLoop(clients) for clients in CLIENTS]
        bench.settle(contenders, loads[-1])
        comparisons = [Comparison(load, contenders) for load in loads]
        if name == EMBEDDING:
            lists = replace(ours, inputs=samples.lists(samples.texts(), LIST), items=LIST)
            comparisons.append(Comparison(ClosedLoop(LIST), [lists, *contenders[1:]], f"lists of {LIST}"))
        results = bench.measure(comparisons)
    for comparison, theirs in product(comparisons, contenders[1:]):
        yield results.row(f"{name}, {comparison}, per s", comparison, OURS, theirs.name)
