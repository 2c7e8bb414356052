"""Measures ResNet-152: TorchServe's stock image_classifier, ours, and the in-process loop, on the same weights.

    archives -> one server with both models, one process with the loop
    for each round, for each number of clients: stock, ours, in-process, in an order that rotates
    new servers, one after the other: seconds to the first answer

Every comparison is of values of the same round, taken within the same minute, on a machine that does nothing else.
Three rounds take about 13 minutes.
"""

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.sandbox import started
from load.bench.archives import OURS, STOCK, Archives
from load.bench.machine import TUNING as IDLE
from load.bench.machine import Processor, versions, wait_idle
from load.bench.peers import (
    CPU_ONLY,
    Child,
    InProcess,
    Measured,
    Peer,
    ServedModel,
    seconds_to_first_answer,
)
from load.bench.peers import TUNING as PEERS
from load.bench.photographs import TUNING as PHOTOGRAPHS
from load.bench.photographs import photographs
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds, Series
from load.bench.table import Bound, Row, differences, ratios, render

# Numbers of clients: alone, as many as a batch holds, and three batches.
CLIENTS = (1, 16, 48)

# This deployment is held to these bounds. Stock computes in fp32; AMX is what makes bf16 several times as fast.
TIMES_STOCK_WITH_AMX = Bound(7, is_minimum=True)
TIMES_STOCK = Bound(2, is_minimum=True)
OF_IN_PROCESS = Bound(0.92, is_minimum=True)
OVER_IN_PROCESS_MS = Bound(8, is_minimum=False)


@dataclass(frozen=True, slots=True)
class Results:
    """Everything measured; each list has one value a round, by the names `stock`, `ours` and `in-process`.

    Attributes:
        throughput_per_s: number of clients -> images per second.
        p50_ms: median latency of one client.
        memory_mb: a worker's memory after the round's load, in 10^6 bytes.
        first_answer_s: seconds from the start of a server to its first answer.
        remarks: a line for each measurement that is not to be trusted: requests failed, or the machine was not idle.
    """

    throughput_per_s: Mapping[int, Series] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    p50_ms: Series = field(default_factory=lambda: defaultdict(list))
    memory_mb: Series = field(default_factory=lambda: defaultdict(list))
    first_answer_s: Series = field(default_factory=lambda: defaultdict(list))
    remarks: list[str] = field(default_factory=list)

    def add(self, label: str, name: str, clients: int, measured: Measured) -> None:
        """Keep one measurement under load."""
        progress(f"{label}: {measured.throughput_per_s:.1f} images/s, p50 {measured.p50_s * 1e3:.0f} ms")
        self.throughput_per_s[clients][name].append(measured.throughput_per_s)
        if clients == 1:
            self.p50_ms[name].append(measured.p50_s * 1e3)
        if measured.failures:
            self.remark(f"{label}: FAILED requests, by status: {measured.failures}")

    def remark(self, line: str) -> None:
        """Print now, and keep for below the table, what is wrong with a measurement."""
        progress(line)
        self.remarks.append(line)


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out.

    Args:
        rounds: how often everything is measured.
        duration_s: seconds that one measurement takes.
        is_markdown: whether the table is GitHub's markdown rather than aligned text.

    Returns:
        A heading, the table, and a line for each measurement that is not to be trusted.

    Raises:
        BenchError, ServerError, ManagementError, ArchiverFailed: a peer could not be measured.
    """
    bodies = photographs()
    results = Results()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        progress("archives: ours and stock")
        with aside():
            archives = Archives.prepare(Path(work))
        engine = _measure_load(archives, bodies, results, rounds, duration_s)
        _measure_start(archives, bodies, results, rounds)
    processor, made, side = Processor.here(), len(results.p50_ms["ours"]), PHOTOGRAPHS.side
    return "\n".join(
        [
            f"ResNet-152 on {processor}; {versions('openvino', 'torch', 'torchserve')}; ours {engine}, "
            f"stock torch fp32; {'trained' if archives.is_trained else 'UNTRAINED (random)'} weights",
            f"batch_size {PEERS.batch_size}, max_batch_delay {PEERS.max_batch_delay_ms} ms, 1 worker; "
            f"JPEGs of {side} x {side}, quality {PHOTOGRAPHS.quality}; "
            f"interleaved rounds: {made}, of {duration_s:g} s each; median (min..max)",
            "",
            render(table(results, processor.has_amx), is_markdown=is_markdown),
            *results.remarks,
        ]
    )


def table(results: Results, has_amx: bool) -> list[Row]:
    """Make the rows of the results; the bounds depend on whether the processor has AMX."""
    rows = []
    for clients in (16, 48):
        rate = results.throughput_per_s[clients]
        rows.append(
            Row(
                f"{clients} clients, images/s: ours / stock",
                rate["stock"],
                rate["ours"],
                [],
                ratios(rate["ours"], rate["stock"]),
                bound=TIMES_STOCK_WITH_AMX if has_amx else TIMES_STOCK,
            )
        )
        rows.append(
            Row(
                f"{clients} clients, images/s: ours / in-process",
                [],
                rate["ours"],
                rate["in-process"],
                ratios(rate["ours"], rate["in-process"]),
                bound=OF_IN_PROCESS if clients == 48 else None,
            )
        )
    p50, memory, start = results.p50_ms, results.memory_mb, results.first_answer_s
    return [
        *rows,
        Row(
            "1 client, p50 in ms: ours - in-process",
            p50["stock"],
            p50["ours"],
            p50["in-process"],
            differences(p50["ours"], p50["in-process"]),
            bound=OVER_IN_PROCESS_MS,
        ),
        Row(
            "worker's memory (PSS) in MB: ours / stock",
            memory["stock"],
            memory["ours"],
            [],
            ratios(memory["ours"], memory["stock"]),
            digits=0,
        ),
        Row(
            "start to first answer in s: ours / stock",
            start["stock"],
            start["ours"],
            [],
            ratios(start["ours"], start["stock"]),
        ),
    ]


def _measure_load(
    archives: Archives, bodies: Sequence[bytes], results: Results, rounds: Rounds, duration_s: float
) -> str:
    """Measure every round; return what our engine calls itself."""
    progress("one TorchServe with both models, one process with the in-process loop")
    with (
        started(archives.model_store, extra=CPU_ONLY) as server,
        Child.started("load.bench.in_process", archives.unpacked) as in_process,
    ):
        served = {"stock": ServedModel(server, STOCK, bodies), "ours": ServedModel(server, OURS, bodies)}
        for model in served.values():
            model.register()
        peers: list[tuple[str, Peer]] = [*served.items(), ("in-process", InProcess(in_process))]
        for each in rounds:
            for clients in CLIENTS:
                first = (each.number - 1) % len(peers)
                for name, peer in [*peers[first:], *peers[:first]]:
                    label = f"{each}, {clients} client{'s' if clients > 1 else ''}, {name}"
                    busy_percent = wait_idle()
                    if busy_percent > IDLE.idle_percent:
                        results.remark(f"{label}: the machine was {busy_percent:.0f} % BUSY with something else")
                    results.add(label, name, clients, peer.measure(clients, duration_s))
            for name, model in served.items():
                results.memory_mb[name].append(model.worker_memory_mb())
        return in_process.engine


def _measure_start(archives: Archives, bodies: Sequence[bytes], results: Results, rounds: Rounds) -> None:
    for each in rounds:
        for name, model in (("stock", STOCK), ("ours", OURS)):
            seconds = seconds_to_first_answer(archives.model_store, model, bodies)
            progress(f"{each}, start to first answer, {name}: {seconds:.1f} s")
            results.first_answer_s[name].append(seconds)
