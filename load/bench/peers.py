"""The same OpenVINO graphs behind ours, BentoML, LitServe and PyTriton, which brings Triton; infinity for embeddings.

    a small network for digits, and MobileNetV2 -> ONNX files -> our archives, whose graphs every peer runs
        -> one TorchServe with both; each peer in an environment of its own
    ours and each peer -> one copy with all threads, or one with one thread for each core, whichever is faster

Ours are archives of `handler: tensors` without any configuration: classic mode, fp32, delay 1 ms. All have the same
largest batch, as many threads as there are cores, the cheapest bodies that they take, kept-alive connections and no
access log. Answers are held against torch's before anything is measured.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from deploy.build.archive import Recipe
from deploy.models import model
from deploy.sandbox import started
from handlers.archive_files import GRAPH
from load.bench import peer_process, retrieval
from load.bench.archives import CPU_ONLY, variant
from load.bench.contender import Served, registered
from load.bench.peer_graph import INPUT, OUTPUT, Given
from load.bench.peer_process import BENTOML, LITSERVE, PYTRITON, Peer
from load.bench.rounds import MOST_PEER_CLIENTS, Bench, against_peers, progress, quietly
from load.bench.table import Row
from load.generate import ClosedLoop
from load.inputs import Inputs
from load.results import Verdict
from torchserve_client import protocol

OURS = "ours"
PEERS = (BENTOML, LITSERVE, PYTRITON)
# The model store, of folders.
STORE = "store"
# Ends the names of archives whose workers have one thread each, and of which there is one for each core.
OF_ONE_THREAD = "-of-one-thread"
# Requests that wait in TorchServe: the 64 of config.properties are 30 ms of the small network, and peers have no bound.
QUEUE = "job_queue_size=512"
ROWS = 64  # rows that are sent in turn
SCORES = 10  # numbers that each is answered with
# Largest difference of a number that another runtime is allowed, as a share of the largest number.
TOLERANCE = 1e-3
# Seconds of the measurements that a number of copies is chosen by.
CHOICE_S = 2.0


@dataclass(frozen=True, slots=True)
class Network:
    """A network with random weights, since what is measured is its time."""

    name: str
    given: Given
    rows: Any  # (ROWS, *shape) float32
    expected: Any  # torch's scores, (ROWS, SCORES) float32


def exported(work: Path) -> list[Network]:
    """Write the ONNX files: a network of 0.1 ms a row, and one of some 10 ms."""
    import torch  # noqa: PLC0415 - seconds, and only here
    from torch import nn  # noqa: PLC0415
    from torchvision.models import mobilenet_v2  # noqa: PLC0415

    torch.manual_seed(0)
    small = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 13 * 13, SCORES)
    )
    real = mobilenet_v2(num_classes=SCORES)
    found = []
    for name, network, shape, size in (("small", small, (1, 28, 28), 64), ("mobilenet", real, (3, 224, 224), 16)):
        network.eval()
        rows = torch.randn(ROWS, *shape)
        with quietly():
            options: Any = {"input_names": [INPUT], "output_names": [OUTPUT], "external_data": False}
            free = ({0: torch.export.Dim.DYNAMIC},)
            torch.onnx.export(network, (rows[:2],), work / f"{name}.onnx", dynamic_shapes=free, **options)
        with torch.inference_mode():
            expected = network(rows).numpy()
        graph = work / STORE / name / GRAPH
        given = Given(str(graph), shape, SCORES, size, len(os.sched_getaffinity(0)))
        found.append(Network(name, given, rows.numpy(), expected))
    return found


def binary(network: Network) -> tuple[Inputs, Mapping[str, str]]:
    """Write each row in the binary form of the Open Inference Protocol; return the headers that all of them have."""
    bodies = [protocol.encode({INPUT: row[None]}, {}) for row in network.rows]
    (length,) = {length for _, length in bodies}
    return Inputs.of(body for body, _ in bodies), {protocol.HEADER: str(length)}


def faster(network: Network, choices: Mapping[int, Served]) -> int:
    """Return with how many copies a network is served faster to the most clients, each at its best of two turns."""
    per_s = dict.fromkeys(choices, 0.0)
    for _, (copies, contender) in product(range(2), choices.items()):
        found = contender.run(ClosedLoop(MOST_PEER_CLIENTS), CHOICE_S, CHOICE_S).per_s
        progress(f"{network.name}: {contender.name}, copies: {copies}: {found:.0f} rows/s")
        per_s[copies] = max(per_s[copies], found)
    return max(per_s, key=lambda copies: per_s[copies])


@contextmanager
def ours(work: Path, networks: Sequence[Network]) -> Iterator[list[Served]]:
    """Serve every network with one TorchServe, by one worker or one for each core."""
    listed = work / "models.yaml"
    entries = {each.name: {"handler": "tensors", "version": "1", "weights": f"{each.name}.onnx"} for each in networks}
    listed.write_text(json.dumps(entries), encoding="utf-8")  # JSON is YAML
    with quietly():
        for name in entries:
            built = Recipe(model(name, listed), archive_format="no-archive", export_path=work / STORE).build()
            variant(built.path, f"{name}{OF_ONE_THREAD}", threads=1)
    with started(work / STORE, extra=(*CPU_ONLY, QUEUE)) as server:
        chosen = []
        for network in networks:
            (inputs, headers), size = binary(network), network.given.batch_size
            choices = {
                copies: replace(
                    registered(server, f"{network.name}{kind}", OURS, inputs, size, workers=copies),
                    headers=headers,
                )
                for kind, copies in ((OF_ONE_THREAD, network.given.threads), ("", 1))
            }
            chosen.append(choices[faster(network, choices)])
        yield chosen


@contextmanager
def theirs(peer: Peer, network: Network) -> Iterator[Served]:
    """Serve a network with a peer, as one copy or one for each core."""
    inputs = Inputs.of(map(peer.body, network.rows))

    @contextmanager
    def served(copies: int) -> Iterator[Served]:
        given = replace(network.given, copies=copies)
        with peer_process.started(peer, peer.body(network.rows[0]), given.to_environment()) as process:
            yield Served(peer.name, process.url, inputs, headers=peer.headers, process=process)

    with ExitStack() as stack:
        choices = {copies: stack.enter_context(served(copies)) for copies in {network.given.threads, 1}}
        chosen = faster(network, choices)
    with served(chosen) as contender:
        yield contender


def verdict(expected: Any, number: int, body: bytes) -> Verdict:
    """Hold an answer, which ends with the scores, against torch's, (ROWS, SCORES)."""
    values = np.frombuffer(body[-4 * SCORES :], np.float32)
    is_right = values.size == SCORES and np.allclose(values, expected[number], 0, TOLERANCE * np.abs(expected).max())
    return Verdict.RIGHT if is_right else Verdict.WRONG


def rows(bench: Bench) -> Iterator[Row]:
    """Measure both networks, and then embeddings."""
    first = replace(bench, ends_s=bench.clock() + 2 / 3 * (bench.ends_s - bench.clock()))
    networks, contenders = exported(bench.work), dict[str, list[Served]]()
    with ExitStack() as stack:
        for network, served in zip(networks, stack.enter_context(ours(bench.work, networks)), strict=True):
            contenders[network.name] = [served, *(stack.enter_context(theirs(peer, network)) for peer in PEERS)]
            for contender in contenders[network.name]:
                replace(contender, check=partial(verdict, network.expected)).run(ClosedLoop(1), 0.5, 0.0)
            bench.settle(contenders[network.name], ClosedLoop(MOST_PEER_CLIENTS))
        yield from against_peers(first, contenders, "rows/s")
    yield from retrieval.embeddings(bench)
