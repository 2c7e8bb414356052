"""Compares adaptive mode without a target, which never refuses for time, with classic mode: what the default rests on.

    one archive, unpacked -> a folder for each mode -> four models on one server: both modes, registered in two ways
        as it serves best   classic at its best batch_size, adaptive with a window of 64; delay 1 ms
        as one types it     both with batch_size=8&max_batch_delay=50, which is what registration calls say that are old
    for each round: clients that wait for their answers, then Poisson arrivals at shares of what classic has just held
    ResNet-152 besides: adaptive at 16 and 48 clients against the loop in process, decoding included

Both modes have the same weights and the same engine; only model-config.yaml differs. Each figure is measured anew in
every round, in one model right after the other, in an order that turns, because what a shared machine gives changes
from minute to minute; arrivals are the same for all. A round takes some five minutes at 8 s a measurement.
"""

import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from deploy.archive import Recipe
from deploy.models import ROOT, model
from deploy.sandbox import started
from deploy.server import Server
from deploy.sources import NotMade, WeightsUnavailable
from load.bench.adaptive import Contender
from load.bench.archives import write_mode
from load.bench.peers import CPU_ONLY, BenchError, Child, InProcess
from load.bench.photographs import photographs
from load.bench.progress import aside, progress
from load.bench.rounds import Round, Rounds
from load.bench.table import Bound, differences, ratios, render_cells, spread
from load.bench.tensor_server import npy
from load.bench.texts import single_bodies
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Inputs
from load.generate.open_loop import OpenLoop
from load.generate.pacers import Poisson
from load.measure.summary import Summary
from torchserve_client.worker_log import WorkerLog, wait_loaded


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what both modes are measured with."""

    # Clients of the closed loops: one, a few, as many as fill a batch, and as many as fill the window.
    clients: tuple[int, ...] = (1, 4, 16, 64)
    # Poisson rates, as shares of classic mode's throughput with the most clients, in the same round.
    shares: tuple[float, ...] = (0.3, 0.6, 0.9)
    # Clients at which the loop in process is the measure.
    in_process_clients: tuple[int, ...] = (16, 48)
    # batch_size of the adaptive model: its window, as the examples have it.
    window: int = 64
    # max_batch_delay, ms: the least that TorchServe takes.
    max_batch_delay_ms: int = 1
    # What registration calls say that follow TorchServe's documentation: batch_size, and max_batch_delay in ms.
    typed_batch_size: int = 8
    typed_delay_ms: int = 50
    # Clients that a worker and Java's compiler meet before anything is measured.
    settling_clients: int = 16


TUNING = Tuning()

# Adaptive mode is held to these bounds, which leave it what two runs of the same differ by.
THROUGHPUT = Bound(0.97, is_minimum=True)
P50 = Bound(1.05, is_minimum=False)
# Decided by the few requests of a measurement that had to wait longest.
P99 = Bound(1.15, is_minimum=False)
FAILURES = Bound(0, is_minimum=False)
OF_IN_PROCESS = Bound(0.95, is_minimum=True)

# Pairs of ways to be registered, classic mode first.
BEST, TYPED = "best", "typed"
MODES = ("classic", "adaptive")
COLUMNS = (
    "measured",
    "classic",
    "adaptive",
    "adaptive / classic",
    "classic, 8 and 50 ms",
    "adaptive, 8 and 50 ms",
    "adaptive / classic",
    "wanted",
    "",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One model.

    Attributes:
        name: of examples/models.yaml.
        batch_sizes: those that classic mode is tried with.
        bodies: makes what is sent.
        content_type: of the bodies.
        has_loop: whether load.bench.in_process runs it.
    """

    name: str
    batch_sizes: tuple[int, ...]
    bodies: Callable[[], Sequence[bytes]]
    content_type: str = "application/json"
    has_loop: bool = False


def digits() -> list[bytes]:
    """Make bodies of one picture of a digit each: arrays, whose parsing costs next to nothing."""
    request = json.loads((ROOT / "examples" / "mnist" / "request.json").read_text(encoding="utf-8"))
    return [npy(np.array([each["image"]], np.float32)) for each in request["instances"]]


RESNET = Case("resnet-152", (8, 16, 32), photographs, "image/jpeg", has_loop=True)
EMBEDDING = Case("sentence-embedding", (16, 32, 64), single_bodies)
MNIST = Case("mnist", (16, 64), digits, "application/x-npy")
LANGUAGE_ID = Case("language-id", (16, 64), single_bodies)
TOKENIZER = Case("tokenizer", (16, 64), single_bodies)

# quantity -> pair and mode -> a value a round
Measured = Mapping[str, Mapping[tuple[str, str], Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Results:
    """Everything measured.

    Attributes:
        batch_size: the best of classic mode.
        measured: quantity -> (pair, mode) -> a value a round.
        in_process: number of clients -> `adaptive` or `in-process` -> images per second, a value a round.
    """

    batch_size: int
    measured: Measured
    in_process: Mapping[int, Mapping[str, Sequence[float]]]


def run(case: Case, *, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure one case, and say what came out; the other arguments and the errors are those of load.bench.resnet."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        store = Path(work)
        progress(f"archive: {case.name}")
        with aside():
            built = _build(case.name, store)
        for mode in MODES:
            in_mode(built, store / f"{case.name}-{mode}", mode)
        with started(store, extra=CPU_ONLY) as server, ExitStack() as stack:
            loop = None
            if case.has_loop:
                loop = InProcess(stack.enter_context(Child.started("load.bench.in_process", built)))
            results = _measure(case, server, loop, rounds, duration_s)
    return "\n".join(
        [
            f"Adaptive mode without a target against classic mode: {case.name}; classic at its best batch_size, "
            f"{results.batch_size}, and adaptive with a window of {TUNING.window}, delay {TUNING.max_batch_delay_ms} "
            f"ms; both with batch_size {TUNING.typed_batch_size} and delay {TUNING.typed_delay_ms} ms",
            "",
            render_cells(COLUMNS, cells(results), is_markdown=is_markdown),
        ]
    )


def _build(name: str, store: Path) -> Path:
    """Build a folder in the model store, of published weights or, where they cannot be had, of random ones."""
    entry = model(name)
    try:
        return Recipe(entry, archive_format="no-archive", export_path=store).build().path
    except NotMade as error:
        raise BenchError(str(error)) from None
    except WeightsUnavailable:
        return Recipe(entry, "random", archive_format="no-archive", export_path=store).build().path


def in_mode(built: Path, folder: Path, mode: str) -> None:
    """Copy an archive that is a folder, and have it run in a mode; of the files but one there is still one copy.

    Args:
        built: the folder.
        folder: where the copy goes.
        mode: `classic` or `adaptive`, which then has no target.
    """
    shutil.copytree(built, folder, copy_function=os.link)
    write_mode(folder, mode)


def _register(server: Server, archive: str, name: str, batch_size: int, delay_ms: int) -> None:
    log = WorkerLog(server.logs / "model_log.log", name)
    server.management.register(
        archive, batch_size=batch_size, max_batch_delay_ms=delay_ms, initial_workers=1, model_name=name
    )
    wait_loaded(server.management, name, log)


def _measure(case: Case, server: Server, loop: InProcess | None, rounds: Rounds, duration_s: float) -> Results:
    inputs = Inputs.of(case.bodies(), case.content_type)

    @contextmanager
    def registered(mode: str, batch_size: int, delay_ms: int) -> Iterator[Contender]:
        name = f"{mode}-{batch_size}-{delay_ms}"
        _register(server, f"{case.name}-{mode}", name, batch_size, delay_ms)
        contender = Contender(server, name, inputs, duration_s)
        contender.run(ClosedLoop(TUNING.settling_clients))
        yield contender
        server.management.unregister(name)

    rates = {}
    for batch_size in case.batch_sizes:
        with registered("classic", batch_size, TUNING.max_batch_delay_ms) as classic:
            rates[batch_size] = classic.run(ClosedLoop(max(TUNING.clients))).throughput_per_s
            progress(f"{case.name}: classic, batch_size {batch_size}: {rates[batch_size]:.1f}/s")
    best = max(rates, key=lambda batch_size: rates[batch_size])
    ways = {
        (BEST, "classic"): ("classic", best, TUNING.max_batch_delay_ms),
        (BEST, "adaptive"): ("adaptive", TUNING.window, TUNING.max_batch_delay_ms),
        (TYPED, "classic"): ("classic", TUNING.typed_batch_size, TUNING.typed_delay_ms),
        (TYPED, "adaptive"): ("adaptive", TUNING.typed_batch_size, TUNING.typed_delay_ms),
    }
    measured: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    compared: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        contenders = {way: stack.enter_context(registered(*how)) for way, how in ways.items()}
        for each in rounds:
            _measure_round(each, contenders, measured)
            if loop is not None:
                _measure_loop(each, contenders[BEST, "adaptive"], loop, duration_s, compared)
    return Results(best, measured, compared)


def _measure_round(
    each: Round,
    contenders: Mapping[tuple[str, str], Contender],
    measured: dict[str, dict[tuple[str, str], list[float]]],
) -> None:
    """Measure everything once, one model right after the other."""
    ways = list(contenders)
    first = (each.number - 1) % len(ways)

    def measure(what: str, load: ClosedLoop | OpenLoop) -> None:
        for way in [*ways[first:], *ways[:first]]:
            summary = contenders[way].run(load)
            figures = quantities(what, summary, is_closed=isinstance(load, ClosedLoop))
            progress(f"{each}, {' '.join(way)}: " + ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))
            for name, value in figures.items():
                measured[name][way].append(value)

    for clients in TUNING.clients:
        measure(f"{clients} client{'s' if clients > 1 else ''}", ClosedLoop(clients))
    capacity_per_s = measured[f"{max(TUNING.clients)} clients, /s"][BEST, "classic"][-1]
    for share in TUNING.shares:
        measure(f"Poisson at {share:.0%} of it", OpenLoop(Poisson(share * capacity_per_s, each.number)))


def quantities(what: str, summary: Summary, *, is_closed: bool) -> dict[str, float]:
    """Name what a measurement shows: latencies and failed requests, of a closed loop its throughput too."""
    rate = {f"{what}, /s": summary.throughput_per_s} if is_closed else {}
    latencies = {f"{what}, p{percent} in ms": summary.latency_ms(percent) for percent in (50, 99)}
    return {**rate, **latencies, f"{what}, failed": summary.requests - summary.completed}


def _measure_loop(
    each: Round, adaptive: Contender, loop: InProcess, duration_s: float, compared: dict[int, dict[str, list[float]]]
) -> None:
    for clients in TUNING.in_process_clients:
        served = adaptive.run(ClosedLoop(clients)).throughput_per_s
        alone = loop.measure(clients, duration_s).throughput_per_s
        progress(f"{each}, {clients} clients: adaptive {served:.1f}, in process {alone:.1f} images/s")
        compared[clients]["adaptive"].append(served)
        compared[clients]["in-process"].append(alone)


def cells(results: Results) -> list[tuple[str, ...]]:
    """Write the rows, a cell for each of COLUMNS."""
    rows = [_row(what, values) for what, values in results.measured.items()]
    for clients, rate in results.in_process.items():
        compared = ratios(rate["adaptive"], rate["in-process"])
        what = f"{clients} clients, images/s: adaptive / in process"
        verdict = "ok" if OF_IN_PROCESS.is_met(median(compared)) else "short"
        values = ("", spread(rate["adaptive"], 1), spread(compared, 2), "", "", "")
        rows.append((what, *values, str(OF_IN_PROCESS), verdict))
    return rows


def _row(what: str, values: Mapping[tuple[str, str], Sequence[float]]) -> tuple[str, ...]:
    bound, compare = _held_to(what)
    line: list[str] = [what]
    short = []
    for pair in (BEST, TYPED):
        classic, adaptive = (values[pair, mode] for mode in MODES)
        compared = compare(adaptive, classic)
        digits = 0 if bound is FAILURES else 1
        line += [spread(classic, digits), spread(adaptive, digits), spread(compared, 0 if bound is FAILURES else 2)]
        if not bound.is_met(median(compared)):
            short.append(pair)
    return (*line, str(bound), f"short: {' and '.join(short)}" if short else "ok")


def _held_to(what: str) -> tuple[Bound, Callable[..., list[float]]]:
    """Tell what a quantity is held to, and how both modes are compared by it; failed requests are counted."""
    kind: Any = what.rpartition(", ")[2]
    bounds = {"/s": THROUGHPUT, "p50 in ms": P50, "p99 in ms": P99, "failed": FAILURES}
    return bounds[kind], differences if kind == "failed" else ratios
