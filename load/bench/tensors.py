"""Models of one's own: the same ONNX file behind ours, BentoML and LitServe; `peers` adds PyTriton.

    a small network for digits, and ResNet-50 on small pictures -> ONNX files
        -> one TorchServe with both; each peer in an environment of its own, with as many processes as serve it best

Ours are archives of `handler: tensors` without any configuration: classic mode, OpenVINO in fp32, delay 1 ms. All have
the same largest batch, as many threads as there are cores, the cheapest bodies that they take, kept-alive connections
and no access log. Answers are held against torch's before anything is measured.
"""

import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deploy.build.archive import Recipe
from deploy.models import model
from deploy.sandbox import started
from load.bench import peer_process
from load.bench.archives import CPU_ONLY
from load.bench.contender import Served, registered
from load.bench.onnx_model import INPUT, OUTPUT, Given
from load.bench.peer_process import BENTOML, LITSERVE, PYTRITON, Peer
from load.bench.rounds import Bench, Comparison, progress, quietly
from load.bench.table import Row
from load.generate import ClosedLoop
from load.inputs import Inputs
from load.results import Verdict

OURS, NPY = "ours", "application/x-npy"
# Rows that are sent in turn; numbers that each is answered with.
ROWS, SCORES = 64, 10
# Largest difference of a number that another runtime is allowed, as a share of the largest number.
TOLERANCE = 1e-3
# Seconds of the measurements that a peer's number of processes is chosen by.
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
    from torchvision.models import resnet50  # noqa: PLC0415

    torch.manual_seed(0)
    small = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 13 * 13, SCORES)
    )
    deep = resnet50(num_classes=SCORES)
    found = []
    for name, network, shape, size in (("small", small, (1, 28, 28), 64), ("deep", deep, (3, 64, 64), 16)):
        network.eval()
        rows, path = torch.randn(ROWS, *shape), work / f"{name}.onnx"
        with quietly():
            options: Any = {"input_names": [INPUT], "output_names": [OUTPUT], "external_data": False}
            torch.onnx.export(network, (rows[:2],), path, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), **options)
        with torch.inference_mode():
            expected = network(rows).numpy()
        given = Given(str(path), shape, SCORES, size, len(os.sched_getaffinity(0)))
        found.append(Network(name, given, rows.numpy(), expected))
    return found


def npy(row: Any) -> bytes:
    """Write a row as a .npy file with the batch dimension: 128 bytes that say its shape, and raw numbers."""
    file = io.BytesIO()
    np.save(file, row[None])
    return file.getvalue()


@contextmanager
def ours(work: Path, networks: Sequence[Network]) -> Iterator[list[Served]]:
    """Serve every network with one TorchServe."""
    listed = work / "models.yaml"
    entries = {each.name: {"handler": "tensors", "version": "1", "weights": f"{each.name}.onnx"} for each in networks}
    listed.write_text(json.dumps(entries), encoding="utf-8")  # JSON is YAML
    with quietly():
        for name in entries:
            Recipe(model(name, listed), export_path=work / "store").build()
    with started(work / "store", extra=CPU_ONLY) as server:
        served = [
            registered(server, f"{each.name}.mar", OURS, Inputs.of(map(npy, each.rows), NPY), each.given.batch_size)
            for each in networks
        ]
        yield [replace(each, headers={"Accept": NPY}) for each in served]


@contextmanager
def theirs(peer: Peer, network: Network) -> Iterator[Served]:
    """Serve a network with a peer, with one process or one for each core, whichever is faster with 64 clients."""
    inputs = Inputs.of(map(peer.body, network.rows))

    @contextmanager
    def served(processes: int) -> Iterator[Served]:
        given = replace(network.given, processes=processes)
        with peer_process.started(peer, peer.body(network.rows[0]), given.to_environment()) as process:
            yield Served(peer.name, process.url, inputs, headers=peer.headers, process=process)

    per_s = {}
    for processes in {1, network.given.threads}:
        with served(processes) as contender:
            per_s[processes] = contender.run(ClosedLoop(64), CHOICE_S, CHOICE_S).per_s
        progress(f"{network.name}: {peer.name} of {processes} processes: {per_s[processes]:.0f} rows/s")
    with served(max(per_s, key=lambda processes: per_s[processes])) as contender:
        yield contender


def verdict(expected: Any, number: int, body: bytes) -> Verdict:
    """Hold an answer, which ends with the scores, against torch's, (ROWS, SCORES)."""
    values = np.frombuffer(body[-4 * SCORES :], np.float32)
    is_right = values.size == SCORES and np.allclose(values, expected[number], 0, TOLERANCE * np.abs(expected).max())
    return Verdict.RIGHT if is_right else Verdict.WRONG


def compared(bench: Bench, peers: Sequence[Peer], clients: Sequence[int]) -> Iterator[Row]:
    """Measure both networks behind ours and the peers; the most clients are the last."""
    networks, comparisons = exported(bench.work), list[Comparison]()
    with ExitStack() as stack:
        for network, served in zip(networks, stack.enter_context(ours(bench.work, networks)), strict=True):
            contenders = [served, *(stack.enter_context(theirs(peer, network)) for peer in peers)]
            for contender in contenders:
                replace(contender, check=partial(verdict, network.expected)).run(ClosedLoop(1), 0.5, 0.0)
            bench.settle(contenders, ClosedLoop(clients[-1]))
            loads = map(ClosedLoop, clients)
            comparisons += [Comparison(load, contenders, f"tensors, {network.name}, {load}") for load in loads]
        results = bench.measure(comparisons)
    for comparison in comparisons:
        for peer in peers:
            yield results.row(f"{comparison}, rows/s", comparison, OURS, peer.name)
            if comparison.load == ClosedLoop(clients[-1]):
                yield results.row(f"{comparison}, p99 in ms", comparison, OURS, peer.name, "p99_ms")


def rows(bench: Bench) -> Iterator[Row]:
    """Measure 16 and 64 clients against BentoML and LitServe."""
    yield from compared(bench, (BENTOML, LITSERVE), (16, 64))


def all_peers(bench: Bench) -> Iterator[Row]:
    """Measure 1, 16 and 64 clients against BentoML, LitServe and PyTriton."""
    yield from compared(bench, (BENTOML, LITSERVE, PYTRITON), (1, 16, 64))
