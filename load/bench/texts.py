"""Measures sentence embedding and language identification over HTTP, against the same models without a server.

    archives -> one server with both models, one process with the loops
    for each round: the ways in process, ours with one text a request, ours with lists, language identification

Three rounds take some five minutes on two cores.
"""

import json
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deploy.archive import Recipe
from deploy.models import model
from deploy.sandbox import started
from load.bench.peers import CPU_ONLY, Child, ServedModel
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds, Series, measure_in_turn
from load.bench.sentences import texts
from load.bench.table import Bound, Row, ratios, render

EMBEDDING, LANGUAGE_ID = "sentence-embedding", "language-id"
WAYS = ("padded", "arrival", "sorted")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what the models are registered with, and how they are asked."""

    # Requests of a batch: that of sentence-embedding among the examples.
    batch_size: int = 32
    # Milliseconds: time enough for clients that were answered together to come back together.
    max_batch_delay_ms: int = 5
    # Clients with one text a request: two batches, so that one waits while one runs.
    clients: int = 64
    # Clients with lists, and texts of a list: the most items that a request of image models may hold.
    list_clients: int = 4
    list_length: int = 64


TUNING = Tuning()

# This deployment is held to these bounds.
TIMES_PADDED = Bound(10, is_minimum=True)
TIMES_ARRIVAL = Bound(1.8, is_minimum=True)
OF_SORTED = Bound(0.85, is_minimum=True)
LANGUAGE_ID_PER_S = Bound(3000, is_minimum=True)


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    rates: Series = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        store, unpacked = Path(work) / "model_store", Path(work) / "unpacked"
        progress("archives: sentence-embedding and language-id")
        with aside():
            for name in (EMBEDDING, LANGUAGE_ID):
                Recipe(model(name), export_path=store).build()
        with zipfile.ZipFile(store / f"{EMBEDDING}.mar") as archive:
            archive.extractall(unpacked)
        with (
            started(store, extra=CPU_ONLY) as server,
            Child.started("load.bench.in_process_texts", unpacked) as in_process,
        ):
            embedding = ServedModel(server, EMBEDDING, single_bodies(), TUNING.batch_size, TUNING.max_batch_delay_ms)
            lists = ServedModel(server, EMBEDDING, list_bodies(), TUNING.batch_size)
            language_id = ServedModel(server, LANGUAGE_ID, list_bodies(), TUNING.batch_size)
            embedding.register()
            language_id.register()

            def in_process_rate(way: str) -> float:
                order = {"way": way, "batch_size": TUNING.batch_size, "duration_s": duration_s}
                return float(in_process.ask(order)["throughput_per_s"])

            figures: dict[str, Callable[[], float]] = {
                **{way: partial(in_process_rate, way) for way in WAYS},
                "single": lambda: embedding.measure(TUNING.clients, duration_s).throughput_per_s,
                "lists": lambda: lists.measure(TUNING.list_clients, duration_s).throughput_per_s * TUNING.list_length,
                "language-id": lambda: (
                    language_id.measure(TUNING.list_clients, duration_s).throughput_per_s * TUNING.list_length
                ),
            }
            measure_in_turn(rounds, "texts", figures, rates)
            engine = in_process.engine
    return "\n".join(
        [
            f"Texts: lognormal, about 40 tokens in the mean, up to 250; {engine}; batch_size {TUNING.batch_size}, "
            f"max_batch_delay {TUNING.max_batch_delay_ms} ms, 1 worker; "
            f"{TUNING.clients} clients with one text a request, "
            f"or {TUNING.list_clients} with lists of {TUNING.list_length}",
            "",
            render(table(rates), is_markdown=is_markdown),
        ]
    )


def table(rates: Series) -> list[Row]:
    """Make the rows; `stock` is the common transformers handler's way, in process and so without a server's cost."""
    rows = []
    for name, label in (("single", f"{TUNING.clients} clients"), ("lists", f"lists of {TUNING.list_length}")):
        ours = rates[name]
        rows += [
            Row(f"embedding, {label}, texts/s: ours / padded to 256 in fp32", rates["padded"], ours, [],
                ratios(ours, rates["padded"]), bound=TIMES_PADDED),
            Row(f"embedding, {label}, texts/s: ours / padded to the longest", [], ours, rates["arrival"],
                ratios(ours, rates["arrival"]), bound=TIMES_ARRIVAL),
            Row(f"embedding, {label}, texts/s: ours / all sorted", [], ours, rates["sorted"],
                ratios(ours, rates["sorted"]), bound=OF_SORTED),
        ]  # fmt: skip
    served = rates["language-id"]
    return [
        *rows,
        Row(f"language id, lists of {TUNING.list_length}, texts/s", [], served, [], served, 0, LANGUAGE_ID_PER_S),
    ]


def single_bodies() -> list[bytes]:
    """Make bodies of one text each."""
    return [json.dumps({"text": text}).encode() for text in texts()]


def list_bodies() -> list[bytes]:
    """Make bodies of `list_length` texts each."""
    every = texts()
    starts = range(0, len(every), TUNING.list_length)
    return [json.dumps({"instances": every[start : start + TUNING.list_length]}).encode() for start in starts]
