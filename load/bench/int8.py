"""int8 and the faster of fp32 and bf16, served and in process.

Remarks below the table report the builder's proof of the agreement with fp32; see docs/explanation/precision.md.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import openvino

from deploy.archives.precision.request import PrecisionRequest
from load.bench import archives, samples
from load.bench.archives import BATCH, CLASSIC, CPU_ONLY, WINDOW
from load.bench.contender import Loop, register, start_loop
from load.bench.rounds import Bench, Comparison, Row
from load.bench.texts import EMBEDDING, LIST, LIST_CLIENTS
from load.generate import ClosedLoop
from load.sandbox import run_server

INT8: Literal["int8"] = "int8"
SIDES = range(200, 680, 40)  # sides in pixels of the photographs that int8 is calibrated with


def measure(bench: Bench) -> Iterator[Row]:
    """Measure image classification with 16 clients and in process, and embeddings with lists."""
    images, texts = write_calibration(bench.work)
    store = bench.work / "store"
    # No least agreement: random weights disagree in int8, which does not matter for speed.
    classified = archives.build(bench, bench.classifier, store, PrecisionRequest(INT8, images, least=0.0))
    embedded = archives.build(bench, EMBEDDING, store, PrecisionRequest(INT8, texts, least=0.0))
    few, many = ClosedLoop(LIST_CLIENTS), ClosedLoop(BATCH)
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    with ExitStack() as stack:
        loops = {}
        for precision in (INT8, "fp32", *({"bf16"} if "BF16" in capabilities else ())):
            archives.copy_with(classified, f"images-{precision}", CLASSIC, precision=precision)
            archives.copy_with(embedded, f"texts-{precision}", precision=precision)
            process = stack.enter_context(start_loop("images", classified.with_name(f"images-{precision}")))
            loops[precision] = Loop(precision, process, batch_size=BATCH)
        bench.settle([*loops.values()], many)
        rates = {name: loop.run(many, bench.seconds, 0.0).per_s for name, loop in loops.items() if name != INT8}
        floating = max(rates, key=rates.__getitem__)
        looped = [loops[INT8], loops[floating]]
        server = stack.enter_context(run_server(store, extra=CPU_ONLY))
        served, listed = [], []
        for precision in (INT8, floating):
            served.append(register(server, f"images-{precision}", precision, samples.images(), BATCH))
            lists = samples.lists(samples.texts(), LIST)
            listed.append(replace(register(server, f"texts-{precision}", precision, lists, WINDOW), items=LIST))
        bench.settle(served, many)
        bench.settle(listed, few)
        comparisons = [
            Comparison(many, served, f"{bench.classifier}, {many}, images/s"),
            Comparison(many, looped, f"{bench.classifier}, in process, images/s"),
            Comparison(ClosedLoop(1), served, f"{bench.classifier}, 1 client, images/s"),
            Comparison(few, listed, f"{EMBEDDING}, {few}, lists of {LIST}, texts/s"),
        ]
        results = bench.measure(comparisons)
    for comparison in comparisons:
        yield results.row(f"int8, {comparison}", comparison, INT8, floating)


def write_calibration(work: Path) -> tuple[Path, Path]:
    images, texts = work / "images", work / "texts"
    images.mkdir()
    texts.mkdir()
    for side in SIDES:
        for number, body in enumerate(samples.photographs(side)[:: samples.SHIFTS]):
            (images / f"{side}-{number}.jpg").write_bytes(body)
    for number, text in enumerate(samples.texts()):
        (texts / f"{number}.txt").write_text(text, encoding="utf-8")
    return images, texts
