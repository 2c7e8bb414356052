"""Texts: sentence embedding, ours, TorchServe's example, padded and all sorted in process; and translation.

The checkpoint for translation is not part of this project: MARIAN is its folder, and without it nothing is measured.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from deploy.places import STORE
from load.bench import archives, samples
from load.bench.archives import CPU_ONLY, STOCK, WINDOW
from load.bench.contender import Loop, register, start_loop
from load.bench.rounds import Bench, Comparison, Row
from load.generate import ClosedLoop
from load.sandbox import run_server

EMBEDDING = "sentence-embedding"
TRANSLATION = "translation"
OURS = "ours"
PADDED = "padded to 256, fp32"
SORTED = "all sorted, in process"
ONE_BY_ONE = "one generate() a request, fp32"
CLIENTS = 64  # with one text per request: as many as the window
LIST_CLIENTS = 4  # with lists
LIST = 64  # texts per list: the most items of a request
BATCH = 32  # texts per micro-batch of the loops, and clients of translation
CHECKPOINT = Path(os.environ.get("MARIAN", STORE / "opus-mt-en-fr"))  # a folder of Helsinki-NLP/opus-mt-en-fr
NO_CHECKPOINT = "translation: not measured: set MARIAN to the folder of a Helsinki-NLP/opus-mt-en-fr checkpoint"


def measure_embedding(bench: Bench) -> Iterator[Row]:
    """Measure one text per request, and lists."""
    built = archives.build(bench, EMBEDDING, bench.work)
    with run_server(bench.work, extra=CPU_ONLY) as server, start_loop("texts", built) as process:
        single = register(server, EMBEDDING, OURS, samples.singles(samples.texts()), WINDOW)
        lists = replace(single, inputs=samples.lists(samples.texts(), LIST), items=LIST)
        loops = [Loop(PADDED, process, "padded", BATCH), Loop(SORTED, process, "sorted", BATCH)]
        archive = archives.build_stock(built, archives.TRANSFORMERS)
        stock = register(server, archive, STOCK, single.inputs, BATCH)
        bench.settle([single, stock], ClosedLoop(CLIENTS))
        bench.settle([lists, *loops], ClosedLoop(LIST_CLIENTS))
        comparisons = [
            Comparison(ClosedLoop(CLIENTS), [single, stock, *loops]),
            Comparison(ClosedLoop(LIST_CLIENTS), [lists, *loops], f"{LIST_CLIENTS} clients, lists of {LIST}"),
        ]
        results = bench.measure(comparisons)
    for comparison in comparisons:
        for theirs in comparison.contenders[1:]:
            yield results.row(f"{EMBEDDING}, {comparison}, texts/s", comparison, OURS, theirs.name)


def measure_translation(bench: Bench) -> Iterator[Row]:
    if not CHECKPOINT.is_dir():
        bench.remark(NO_CHECKPOINT)
        return
    archives.build(bench, TRANSLATION, bench.work, weights=str(CHECKPOINT))
    load, inputs = ClosedLoop(BATCH), samples.singles(samples.paragraphs(BATCH))
    with run_server(bench.work, extra=CPU_ONLY) as server, start_loop("translation", CHECKPOINT) as process:
        ours = register(server, TRANSLATION, OURS, inputs, WINDOW)
        bench.settle([ours], load)
        results = bench.measure([Comparison(load, [ours, Loop(ONE_BY_ONE, process)])])
    yield results.row(f"opus-mt-en-fr, {load}, texts/s", load, OURS, ONE_BY_ONE)
