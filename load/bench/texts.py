"""Texts: sentence embedding padded as by the usual handler, ours, and all sorted in process; and translation.

The checkpoint for translation is no part of this project: MARIAN names its folder, and without one nothing is measured.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from deploy.models import ROOT
from deploy.sandbox import started
from load.bench import archives, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Loop, loop_process, registered
from load.bench.rounds import Bench, Comparison
from load.bench.table import Row
from load.generate import ClosedLoop

EMBEDDING = "sentence-embedding"
TRANSLATION = "translation"
OURS = "ours"
PADDED = "padded to 256, fp32"
SORTED = "all sorted, in process"
ONE_BY_ONE = "one generate() a request, fp32"
CLIENTS = 64  # with one text a request: as many as the window
LIST_CLIENTS = 4  # with lists
LIST = 64  # texts of a list: the most items that a request may hold
# Texts of a micro-batch of the loops, and clients of translation.
BATCH = 32
# A folder of Helsinki-NLP/opus-mt-en-fr.
CHECKPOINT = Path(os.environ.get("MARIAN", ROOT / "model_store" / "opus-mt-en-fr"))


def embedding(bench: Bench) -> Iterator[Row]:
    """Measure one text a request, and lists."""
    built = archives.build(bench, EMBEDDING, bench.work)
    with started(bench.work, extra=CPU_ONLY) as server, loop_process("texts", built) as process:
        single = registered(server, EMBEDDING, OURS, samples.singles(samples.texts()), WINDOW)
        lists = replace(single, inputs=samples.lists(samples.texts(), LIST), items=LIST)
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


def translation(bench: Bench) -> Iterator[Row]:
    """Measure 32 clients."""
    if not CHECKPOINT.is_dir():
        bench.remark("translation: not measured: MARIAN=FOLDER names a checkpoint of Helsinki-NLP/opus-mt-en-fr")
        return
    archives.build(bench, TRANSLATION, bench.work, weights=str(CHECKPOINT))
    load, inputs = ClosedLoop(BATCH), samples.singles(samples.paragraphs(BATCH))
    with started(bench.work, extra=CPU_ONLY) as server, loop_process("translation", CHECKPOINT) as process:
        ours = registered(server, TRANSLATION, OURS, inputs, WINDOW)
        bench.settle([ours], load)
        results = bench.measure([Comparison(load, [ours, Loop(ONE_BY_ONE, process)])])
    yield results.row(f"opus-mt-en-fr, {load}, texts/s", load, OURS, ONE_BY_ONE)
