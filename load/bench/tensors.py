"""Measures models of one's own: the same ONNX file behind ours, BentoML and LitServe, and what the identity costs.

    load.bench.networks: a small network, and one fitted to 20 ms a row -> ONNX files
        -> one TorchServe with both, classic and adaptive; BentoML and LitServe in .extras/peers, one each a network
    for each round, each network: 1, 16, 64 clients, and Poisson arrivals at 70 % of the best throughput with 64
    load.bench.identity: the worker's processor time beside the model

Ours are archives of `handler: tensors` without any configuration but the mode: OpenVINO in fp32 on every core,
`max_batch_delay=1`. Classic mode stands under `ours` and is what is compared; adaptive mode stands beside. Bodies are
.npy files of one row, and so are the answers: raw float32 after 128 bytes that say its shape. What the others are given
stands in load.bench.onnx_peers. Every contender has the same largest batch, as many threads as there are cores,
kept-alive connections and no access log; each answer is held against onnxruntime's before anything is measured. All
share the cores with the load generator.
"""

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from load.bench import identity, networks, onnx_peers, table, tensor_server
from load.bench.contenders import Contender
from load.bench.machine import Processor, versions
from load.bench.networks import DEEP, SMALL, Network
from load.bench.onnx_peers import Peer
from load.bench.onnx_session import Given, Session
from load.bench.progress import progress
from load.bench.rounds import Round, Rounds, Series
from load.bench.standings import Standing, columns
from load.bench.table import Bound
from load.bench.tensor_server import ADAPTIVE, OURS
from load.generate.attack import Load
from load.generate.closed_loop import ClosedLoop
from load.generate.open_loop import OpenLoop
from load.generate.pacers import Poisson
from load.measure.summary import Summary

OTHERS = tuple(peer.name for peer in onnx_peers.PEERS)
CONTENDERS = (*OTHERS, OURS, ADAPTIVE)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how everything is measured."""

    # Clients: alone, a part of a batch, and as many as keep every queue full.
    clients: tuple[int, ...] = (1, 16, 64)
    # Share of the best throughput with the most clients, at which requests arrive by chance.
    poisson_share: float = 0.7
    # Rows that are sent in turn.
    rows: int = 64
    # Longest measurement, and longest of the identity's, s; minutes of the whole part.
    most_s: float = 4.0
    identity_s: float = 2.0
    most_minutes: float = 11.5
    # Length of the measurements that a peer's number of processes is chosen by, s.
    choice_s: float = 2.0


TUNING = Tuning()
MOST_CLIENTS = max(TUNING.clients)
# This deployment is held to these bounds: first with the most clients and under Poisson arrivals, near it elsewhere.
FIRST_PER_S, NEAR_PER_S = Bound(1.0, is_minimum=True), Bound(0.9, is_minimum=True)
FIRST_MS, NEAR_MS = Bound(1.0, is_minimum=False), Bound(1.1, is_minimum=False)
# (network, load, quantity) -> contender -> a value a round
Measured = dict[tuple[str, str, str], Series]


@dataclass(frozen=True, slots=True)
class Results:
    """Everything measured under load.

    Attributes:
        measured: a value a round of every quantity.
        remarks: a line for each measurement that is not to be trusted.
    """

    measured: Measured = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    remarks: list[str] = field(default_factory=list)


PER_S, P99_MS = "rows/s", "p99 in ms"
POISSON = "Poisson"


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    ends_s = min(rounds.ends_s, rounds.clock() + 60 * TUNING.most_minutes)
    duration_s = min(duration_s, TUNING.most_s)
    results = Results()
    costs = identity.new_series()
    programs = onnx_peers.environment()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        work = Path(folder)
        cores = len(os.sched_getaffinity(0))
        both, single_ms = _networks(work, cores)
        server = stack.enter_context(tensor_server.serving(work, both))
        contenders: dict[str, list[Contender]] = {}
        for network in both:
            given = Given(str(network.path), network.shape, network.batch_size, cores)
            others = [stack.enter_context(_other(peer, given, network, programs)) for peer in onnx_peers.PEERS]
            contenders[network.name] = [*others, *tensor_server.contenders(server, network, TUNING.rows)]
            expected = Session(given).run(network.rows(1))
            for contender in contenders[network.name]:
                contender.check(expected)
        made = 0
        for each in replace(rounds, ends_s=ends_s):
            made += 1
            for network in both:
                _measure(network.name, contenders[network.name], each, duration_s, results)
            identity.measure(server, each, min(duration_s, TUNING.identity_s), costs)
    sizes = f"batches of {' and '.join(str(network.batch_size) for network in both)} at most"
    return "\n".join(
        [
            f"Tensors in, tensors out, on {Processor.here()}; {versions('openvino', 'onnxruntime', 'torchserve')}; "
            f"{SMALL}: 1x28x28, {DEEP}: 3x32x32, {single_ms:.1f} ms a row with onnxruntime; {sizes}; "
            f"interleaved rounds: {made}, of {duration_s:g} s each; median (min..max)",
            "",
            table.render_cells(
                columns(CONTENDERS),
                [row.cells(CONTENDERS) for row in standings(results.measured)],
                is_markdown=is_markdown,
            ),
            "",
            "The identity, ours against a bare BaseHandler (under `stock`)",
            "",
            table.render(identity.table(costs), is_markdown=is_markdown),
            *results.remarks,
        ]
    )


def standings(measured: Measured) -> list[Standing]:
    """Make the rows of what was measured under load; a quantity that was not measured has none."""
    rows = []
    for network in (SMALL, DEEP):
        for load in (*map(name_of, TUNING.clients), POISSON):
            is_held_first = load in (name_of(MOST_CLIENTS), POISSON)
            for quantity in (PER_S, P99_MS):
                values = measured.get((network, load, quantity))
                if values is None:
                    continue
                is_rate = quantity == PER_S
                near, first = (NEAR_PER_S, FIRST_PER_S) if is_rate else (NEAR_MS, FIRST_MS)
                rows.append(
                    Standing(
                        f"{network}, {load}, {quantity}",
                        values,
                        OURS,
                        OTHERS,
                        is_more_better=is_rate,
                        bound=first if is_held_first else near,
                        digits=0 if is_rate else 1,
                    )
                )
    return rows


def p99_ms(summary: Summary) -> float:
    """Return the 99th percentile of the latencies in ms, for which a request without a good answer takes forever.

    Latencies are those of good answers alone: a server that refuses what it has no room for would be the faster for it.
    """
    has_failed = summary.requests - summary.completed > 0.01 * summary.requests
    return math.inf if has_failed else summary.latency_ms(99)


def name_of(clients: int) -> str:
    """Name a load of so many clients."""
    return str(ClosedLoop(clients))


def _networks(work: Path, threads: int) -> tuple[Sequence[Network], float]:
    """Write both networks, the deep one fitted to this processor; return its time for one row in ms, too."""

    def single_ms(network: Network) -> float:
        session, row = Session(Given(str(network.path), network.shape, 1, threads)), network.rows(1)
        return networks.milliseconds(lambda: session.run(row))

    tried = networks.deep(work / "tried.onnx", networks.TUNING.tried_units)
    deep = networks.deep(work / f"{DEEP}.onnx", networks.units_for(single_ms(tried)))
    took_ms = single_ms(deep)
    progress(f"{DEEP}: {took_ms:.1f} ms a row, {deep.path.stat().st_size / 1e6:.0f} MB")
    return [networks.small(work / f"{SMALL}.onnx"), deep], took_ms


@contextmanager
def _other(peer: Peer, given: Given, network: Network, programs: Path) -> Iterator[Contender]:
    """Start a peer with as many processes as it is fastest with."""
    bodies = [row.tobytes() for row in network.rows(TUNING.rows)]

    def contender(running: onnx_peers.Running) -> Contender:
        return Contender(peer.name, running.url, bodies, lambda body: np.frombuffer(body, np.float32), running=running)

    per_s = {}
    for processes in {1, given.threads}:
        with onnx_peers.started(peer, replace(given, processes=processes), programs, bodies[0]) as running:
            summary = contender(running).run(ClosedLoop(MOST_CLIENTS), TUNING.choice_s)
        per_s[processes] = summary.throughput_per_s
        progress(f"{network.name}, {peer.name} of {processes} processes: {per_s[processes]:.0f} rows/s")
    best = max(per_s, key=lambda processes: per_s[processes])
    with onnx_peers.started(peer, replace(given, processes=best), programs, bodies[0]) as running:
        running.pause()
        yield contender(running)


def _measure(network: str, contenders: Sequence[Contender], each: Round, duration_s: float, results: Results) -> None:
    """Measure one network once: every load, every contender, the first of them another one in each round."""
    at = each.number % len(contenders)
    turn = [*contenders[at:], *contenders[:at]]
    loads: list[tuple[str, Load]] = [(name_of(clients), ClosedLoop(clients)) for clients in TUNING.clients]

    def take(name: str, load: Load, quantities: Sequence[str]) -> None:
        for contender in turn:
            # Adaptive mode is shown where it is loaded.
            if contender.name == ADAPTIVE and name not in (name_of(MOST_CLIENTS), POISSON):
                continue
            summary = contender.run(load, duration_s)
            values = {PER_S: summary.throughput_per_s, P99_MS: p99_ms(summary)}
            label = f"{each}, {network}, {name}, {contender.name}"
            progress(f"{label}: {values[PER_S]:.0f} rows/s, p99 {values[P99_MS]:.1f} ms")
            for quantity in quantities:
                results.measured[network, name, quantity][contender.name].append(values[quantity])
            if summary.failures or summary.invalid_reasons:
                results.remarks.append(f"{label}: failed {summary.failures}; {'; '.join(summary.invalid_reasons)}")

    for name, load in loads:
        take(name, load, (PER_S, P99_MS))
    best_per_s = max(values[-1] for values in results.measured[network, name_of(MOST_CLIENTS), PER_S].values())
    take(POISSON, OpenLoop(Poisson(TUNING.poisson_share * best_per_s, seed=each.number)), (P99_MS,))
