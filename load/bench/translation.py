"""Translation: transformers' generate() for each request, and ours.

The checkpoint is no part of this project: MARIAN names its folder, and without one nothing is measured.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from deploy.models import ROOT
from deploy.sandbox import started
from load.bench import archives, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Loop, loop_process, registered
from load.bench.rounds import Bench, Comparison
from load.bench.table import Row
from load.generate import ClosedLoop

TRANSLATION = "translation"
# A folder of Helsinki-NLP/opus-mt-en-fr.
CHECKPOINT = Path(os.environ.get("MARIAN", ROOT.parent / "shared" / "models" / "opus-mt-en-fr"))
CLIENTS = 32
ONE_BY_ONE, OURS = "one generate() a request, fp32", "ours"


def rows(bench: Bench) -> Iterator[Row]:
    """Measure 32 clients."""
    if not CHECKPOINT.is_dir():
        bench.remark("translation: not measured: MARIAN=FOLDER names a checkpoint of Helsinki-NLP/opus-mt-en-fr")
        return
    archives.build(bench, TRANSLATION, bench.work, weights=str(CHECKPOINT))
    load = ClosedLoop(CLIENTS)
    with started(bench.work, extra=CPU_ONLY) as server, loop_process("translation", CHECKPOINT) as process:
        inputs = samples.singles(samples.paragraphs(CLIENTS))
        ours = registered(server, TRANSLATION, OURS, inputs, WINDOW)
        bench.settle([ours], load)
        results = bench.measure([Comparison(load, [ours, Loop(ONE_BY_ONE, process)])])
    yield results.row(f"opus-mt-en-fr, {load}, texts/s", load, OURS, ONE_BY_ONE)
