"""Measures translation: one generate() for a micro-batch, against one generate() a request.

    a Marian checkpoint -> two archives of it, registered with batch_size 32 and 1 -> 32 clients each, in turn
                        -> a process that calls transformers' generate() for each text

The checkpoint is not part of this project: without one nothing is measured, and the output says so. Three rounds take
some four minutes on two cores with bf16 instructions.
"""

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deploy.archive import Recipe
from deploy.models import ROOT, model
from deploy.sandbox import started
from load.bench.peers import CPU_ONLY, Child, ServedModel
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds, Series, measure_in_turn
from load.bench.table import Bound, Row, ratios, render

# A folder of Helsinki-NLP/opus-mt-en-fr: the one that the variable names, or one beside the repository.
CHECKPOINT = Path(os.environ.get("MARIAN", ROOT.parent / "shared" / "models" / "opus-mt-en-fr"))


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
BATCH_SIZES = {"batched": TUNING.batch_size, "one by one": 1}
# This deployment is held to these bounds.
TIMES_ONE_BY_ONE = Bound(6, is_minimum=True)

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
    rates: Series = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        store = Path(work)
        progress("archives: translation, twice")
        entry = model("translation")
        names = {way: f"translation-{size}" for way, size in BATCH_SIZES.items()}
        with aside():
            for name in names.values():
                Recipe(replace(entry, name=name), str(CHECKPOINT), engine="torch", export_path=store).build()
        with (
            started(store, extra=CPU_ONLY) as server,
            Child.started("load.bench.in_process_translation", CHECKPOINT) as stock,
        ):
            served = {
                way: ServedModel(server, name, bodies, BATCH_SIZES[way], TUNING.max_batch_delay_ms)
                for way, name in names.items()
            }
            for each in served.values():
                each.register()
            answers: dict[str, list[str]] = {}

            def stock_rate(precision: str) -> float:
                measured = stock.ask({"precision": precision, "duration_s": duration_s})
                answers[precision] = measured["answers"]
                return float(measured["throughput_per_s"])

            def served_rate(way: str) -> float:
                return served[way].measure(TUNING.clients, duration_s).throughput_per_s

            figures: dict[str, Callable[[], float]] = {
                **{precision: partial(stock_rate, precision) for precision in ("bf16", "fp32")},
                **{way: partial(served_rate, way) for way in served},
            }
            measure_in_turn(rounds, "translation", figures, rates)
            everything = json.dumps({"instances": sentences()}).encode()
            batched = [p["translation_text"] for p in served["batched"].answer(everything)["predictions"]]
    same = {p: sum(a == b for a, b in zip(batched, answers[p], strict=True)) for p in answers}
    return "\n".join(
        [
            f"Translation with {CHECKPOINT.name}: greedy, torch on CPU; {TUNING.clients} clients, "
            f"batch_size {TUNING.batch_size}, max_batch_delay {TUNING.max_batch_delay_ms} ms; "
            "stock: transformers' generate() for each text, in process",
            "",
            render(table(rates), is_markdown=is_markdown),
            f"answers of a batch equal to one generate() a text: {same['bf16']} of {len(batched)} in bf16, "
            f"{same['fp32']} in fp32",
        ]
    )


def table(rates: Series) -> list[Row]:
    """Make the rows: batched, against each way of one generate() a request."""
    ours = rates["batched"]
    return [
        Row("translation, texts/s: ours / stock, one by one, bf16", rates["bf16"], ours, [],
            ratios(ours, rates["bf16"]), bound=TIMES_ONE_BY_ONE),
        Row("translation, texts/s: ours / stock, one by one, fp32", rates["fp32"], ours, [],
            ratios(ours, rates["fp32"])),
        Row("translation, texts/s: ours / ours with batch_size 1", rates["one by one"], ours, [],
            ratios(ours, rates["one by one"])),
    ]  # fmt: skip
