"""Measures translation: this deployment, against itself before it had CTranslate2, and against a generate() a request.

    a Marian checkpoint -> an archive of it, and one by the commit before   -> 32 clients and one, in turn
                        -> a process that calls transformers' generate() for each text

The checkpoint is not part of this project: without one nothing is measured, and the output says so. Nor is the commit
before part of every copy of the repository: without it, only generate() is compared with. Three rounds take some eight
minutes on two cores.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from deploy.sandbox import started
from load.bench.machine import Processor, versions
from load.bench.peers import CPU_ONLY, Child, ServedModel, seconds_to_first_answer
from load.bench.progress import progress
from load.bench.rounds import Rounds, Series, measure_in_turn
from load.bench.table import Bound, Row, ratios, render
from load.bench.translation_archives import BEFORE, CHECKPOINT, build_before, build_now


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what the models are registered with, and how they are asked."""

    # Requests of a batch: that of translation among the examples; and clients, which fill one.
    batch_size: int = 32
    clients: int = 32
    # Milliseconds: time enough for clients that were answered together to come back together.
    max_batch_delay_ms: int = 20
    # Tokens of an answer: more than any of these texts needs.
    max_new_tokens: int = 256


TUNING = Tuning()
NOW_NAME, BEFORE_NAME = "translation-now", "translation-before"
# This deployment is held to these bounds.
TIMES_ONE_BY_ONE = Bound(20, is_minimum=True)
TIMES_BEFORE = Bound(2, is_minimum=True)
ALONE_BEFORE = Bound(0.35, is_minimum=False)

CLAUSES = (
    "The weather is nice today.",
    "We are going to the beach with our friends.",
    "The central bank left its interest rate unchanged on Thursday.",
    "She bought bread.",
    "Nobody knew why the train to Paris had stopped in the middle of the night.",
    "The children were asleep.",
    "He read the letter twice and put it back into the drawer without a word.",
    "Prices rose by two percent.",
)


def sentences() -> list[str]:
    """Make a text for each client, of one to six sentences, short ones more often."""
    lengths = (1, 1, 2, 1, 3, 1, 2, 6)
    starts = range(TUNING.clients)
    return [
        " ".join(CLAUSES[(3 * start + index) % len(CLAUSES)] for index in range(lengths[start % len(lengths)]))
        for start in starts
    ]


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    if not CHECKPOINT.is_dir():
        return f"Translation: not measured, for lack of a checkpoint: MARIAN=FOLDER names one ({CHECKPOINT.name})"
    bodies = [json.dumps({"text": text}).encode() for text in sentences()]
    series: Series = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        store = Path(work) / "store"
        store.mkdir()
        progress("archives: translation, now and before")
        names = {"now": NOW_NAME}
        build_now(NOW_NAME, store, Path(work))
        if build_before(BEFORE_NAME, store, Path(work)):
            names["before"] = BEFORE_NAME
        for way, name in names.items():
            series[f"{way}, archive"] = [(store / f"{name}.mar").stat().st_size / 1e6]
            series[f"{way}, first answer"] = [seconds_to_first_answer(store, name, bodies)]
        with (
            started(store, extra=CPU_ONLY) as server,
            Child.started("load.bench.in_process_translation", CHECKPOINT) as stock,
        ):
            served = {
                way: ServedModel(server, name, bodies, TUNING.batch_size, TUNING.max_batch_delay_ms)
                for way, name in names.items()
            }
            for each in served.values():
                each.register()
                each.answer()
            answers: dict[str, list[str]] = {}

            def stock_rate(precision: str) -> float:
                measured = stock.ask({"precision": precision, "duration_s": duration_s})
                answers[precision] = measured["answers"]
                return float(measured["throughput_per_s"])

            def served_rate(way: str) -> float:
                worker = psutil.Process(served[way].worker_pid())
                before_s = _processor_s(worker)
                rate = served[way].measure(TUNING.clients, duration_s).throughput_per_s
                # The load ends a little after its time, for answers that are on their way: some per cent.
                series[f"{way}, processor"].append((_processor_s(worker) - before_s) / (rate * duration_s) * 1e3)
                return rate

            def alone_rate(way: str) -> float:
                measured = served[way].measure(1, duration_s)
                series[f"{way}, alone p50"].append(measured.p50_s * 1e3)
                return measured.throughput_per_s

            figures: dict[str, Callable[[], float]] = {
                "fp32": partial(stock_rate, "fp32"),
                **{way: partial(served_rate, way) for way in served},
                **{f"{way}, alone": partial(alone_rate, way) for way in served},
            }
            measure_in_turn(rounds, "translation", figures, series)
            for way, each in served.items():
                series[f"{way}, memory"] = [each.worker_memory_mb()]
            everything = json.dumps({"instances": sentences()}).encode()
            batched = [p["translation_text"] for p in served["now"].answer(everything)["predictions"]]
    same = sum(a == b for a, b in zip(batched, answers["fp32"], strict=True))
    return "\n".join(
        [
            f"Translation with {CHECKPOINT.name}: greedy; {TUNING.clients} clients, batch_size {TUNING.batch_size}, "
            f"max_batch_delay {TUNING.max_batch_delay_ms} ms; on {Processor.here()}; "
            f"{versions('ctranslate2', 'torch', 'transformers')}; stock: transformers' generate() for each text, in "
            f"process, or this deployment at {BEFORE[:7]}",
            "",
            render(table(series), is_markdown=is_markdown),
            f"answers of a batch in int8 equal to one generate() a text in fp32: {same} of {len(batched)}",
        ]
    )


def _processor_s(worker: psutil.Process) -> float:
    """Give the seconds of processor time that a worker has taken so far."""
    times = worker.cpu_times()
    return float(times.user + times.system)


def table(series: Series) -> list[Row]:
    """Make the rows: now, against the commit before and against one generate() a request."""
    now = series["now"]
    rows = [
        Row("translation, texts/s: ours / stock, one by one, fp32", series["fp32"], now, [],
            ratios(now, series["fp32"]), bound=TIMES_ONE_BY_ONE),
    ]  # fmt: skip
    if "before" not in series:
        return rows
    compared: tuple[tuple[str, str, Bound | None], ...] = (
        ("texts/s", "", TIMES_BEFORE),
        ("one client, p50 in ms", ", alone p50", ALONE_BEFORE),
        ("processor time of a text in ms", ", processor", None),
        ("memory of a worker in MB", ", memory", None),
        ("archive in MB", ", archive", None),
        ("seconds to the first answer", ", first answer", None),
    )
    for what, kind, bound in compared:
        then, now = series[f"before{kind}"], series[f"now{kind}"]
        rows.append(Row(f"translation, {what}: ours / before", then, now, [], ratios(now, then), bound=bound))
    return rows
