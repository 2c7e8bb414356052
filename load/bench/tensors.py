"""Models of one's own: the same ONNX file behind ours, BentoML and LitServe; `peers` adds PyTriton and more loads.

    a small network for digits, and ResNet-50 on small pictures -> ONNX files
        -> one TorchServe with both; each peer in an environment of its own, with as many processes as serve it best

Ours are archives of `handler: tensors` without any configuration: classic mode, OpenVINO in fp32 on every core, delay
1 ms, .npy bodies. All have the same largest batch, as many threads as there are cores, kept-alive connections and no
access log. Each answer is held against torch's before anything is measured.
"""

import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deploy.archive import Recipe
from deploy.models import model
from deploy.sandbox import started
from load.bench import peer_process
from load.bench.archives import CPU_ONLY
from load.bench.contender import Served, registered
from load.bench.onnx_model import INPUT, OUTPUT, Given
from load.bench.peer_process import BENTOML, LITSERVE, PYTRITON, Peer
from load.bench.rounds import Bench, Comparison, Results, progress, quietly
from load.bench.table import Row
from load.errors import LoadError
from load.generate import ClosedLoop, OpenLoop
from load.inputs import Inputs
from load.schedules import Poisson

OURS = "ours"
# Rows that are sent in turn.
ROWS = 64
# Largest difference of a number that another runtime is allowed, as a share of the largest number.
TOLERANCE = 1e-3
# Share of the best throughput with the most clients, at which requests arrive by chance.
POISSON, POISSON_SHARE = "Poisson at 70%", 0.7
# Seconds of the measurements that a peer's number of processes is chosen by.
CHOICE_S = 2.0


@dataclass(frozen=True, slots=True)
class Network:
    """A network with random weights: what is measured is its time.

    Attributes:
        name: its name, as model and as file.
        given: what it is served with.
        rows: (ROWS, *shape) float32.
        expected: torch's scores of the first row.
    """

    name: str
    given: Given
    rows: Any
    expected: Any


def exported(work: Path) -> list[Network]:
    """Write the ONNX files: a network of 0.1 ms a row, and one of some 10 ms."""
    import torch  # noqa: PLC0415 - seconds, and only here
    from torch import nn  # noqa: PLC0415
    from torchvision.models import resnet50  # noqa: PLC0415

    torch.manual_seed(0)
    digits = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 13 * 13, 10)]
    found = []
    for name, module, shape, batch_size in (
        ("small", nn.Sequential(*digits), (1, 28, 28), 64),
        ("deep", resnet50(num_classes=10), (3, 64, 64), 16),
    ):
        module.eval()
        rows = torch.randn(ROWS, *shape)
        path, dynamic = work / f"{name}.onnx", ({0: torch.export.Dim.DYNAMIC},)
        with quietly():
            program = torch.onnx.export(
                module, (rows[:2],), dynamic_shapes=dynamic, input_names=[INPUT], output_names=[OUTPUT]
            )
            assert program is not None
            program.save(path)
        with torch.inference_mode():
            expected = module(rows[:1]).numpy()
        given = Given(str(path), shape, 10, batch_size, len(os.sched_getaffinity(0)))
        found.append(Network(name, given, rows.numpy(), expected))
    return found


def npy(row: Any) -> bytes:
    """Write a row as a .npy file with the batch dimension: 128 bytes that say its shape, and raw numbers."""
    file = io.BytesIO()
    np.save(file, row[None])
    return file.getvalue()


def ours(stack: ExitStack, work: Path, networks: Sequence[Network]) -> dict[str, Served]:
    """Serve every network with one TorchServe; return the contenders by the network's name."""
    store = work / "store"
    listed = work / "models.yaml"
    entries = {each.name: {"handler": "tensors", "version": "1", "weights": f"{each.name}.onnx"} for each in networks}
    listed.write_text(json.dumps(entries), encoding="utf-8")  # JSON is YAML
    with quietly():
        for name in entries:
            Recipe(model(name, listed), export_path=store).build()
    server = stack.enter_context(started(store, extra=CPU_ONLY))
    kind = "application/x-npy"
    return {
        each.name: replace(
            registered(server, f"{each.name}.mar", OURS, Inputs.of(map(npy, each.rows), kind), each.given.batch_size),
            headers={"Accept": kind},
        )
        for each in networks
    }


@contextmanager
def theirs(peer: Peer, network: Network) -> Iterator[Served]:
    """Serve a network with a peer, with one process or one for each core, whichever is faster with 64 clients."""
    inputs = Inputs.of(map(peer.body, network.rows))

    @contextmanager
    def served(processes: int) -> Iterator[Served]:
        with peer_process.started(peer, replace(network.given, processes=processes)) as process:
            yield Served(peer.name, process.url, inputs, headers=peer.headers, process=process)

    per_s = {}
    for processes in {1, network.given.threads}:
        with served(processes) as contender:
            per_s[processes] = contender.run(ClosedLoop(64), CHOICE_S, CHOICE_S).per_s
        progress(f"{network.name}: {peer.name} of {processes} processes: {per_s[processes]:.0f} rows/s")
    with served(max(per_s, key=lambda processes: per_s[processes])) as contender:
        yield contender


def check(contender: Served, network: Network) -> None:
    """Hold the answer to the first row against torch's.

    Raises:
        LoadError: it is another.
    """
    expected = network.expected.ravel()
    body = contender.ask()[-expected.nbytes :]
    values = np.frombuffer(body, np.float32)
    if values.size != expected.size or np.abs(values - expected).max() > TOLERANCE * np.abs(expected).max():
        raise LoadError(f"{contender.name} computes something else than torch: {values[:3]}, not {expected[:3]}")


def compared(bench: Bench, peers: Sequence[Peer], clients: Sequence[int], poisson: bool = False) -> Iterator[Row]:
    """Measure both networks.

    Args:
        bench: how.
        peers: what ours is compared with.
        clients: numbers of clients, the most last.
        poisson: whether requests arrive by chance, too, at a share of the best throughput with the most clients.
    """
    networks = exported(bench.work)
    with ExitStack() as stack:
        served = ours(stack, bench.work, networks)
        contenders = {
            each.name: [served[each.name], *(stack.enter_context(theirs(peer, each)) for peer in peers)]
            for each in networks
        }
        for each in networks:
            for contender in contenders[each.name]:
                check(contender, each)
            bench.settle(contenders[each.name], ClosedLoop(clients[-1]))
        results = {each.name: Results() for each in networks}
        for number in bench:
            for name, some in contenders.items():
                for load in map(ClosedLoop, clients):
                    bench.compare(number, Comparison(load, some), results[name])
                if poisson:
                    best = max(results[name][str(ClosedLoop(clients[-1])), each.name][-1].per_s for each in some)
                    arrivals = OpenLoop(Poisson(POISSON_SHARE * best, seed=number))
                    bench.compare(number, Comparison(arrivals, some, POISSON), results[name])
    for name, found in results.items():
        for peer in peers:
            for load in map(ClosedLoop, clients):
                yield found.row(f"tensors ({name}), {load}, rows/s", load, OURS, peer.name)
            last = POISSON if poisson else ClosedLoop(clients[-1])
            yield found.row(f"tensors ({name}), {last}, p99 in ms", last, OURS, peer.name, "p99_ms")


def rows(bench: Bench) -> Iterator[Row]:
    """Measure 16 and 64 clients against BentoML and LitServe."""
    yield from compared(bench, (BENTOML, LITSERVE), (16, 64))


def all_peers(bench: Bench) -> Iterator[Row]:
    """Measure 1, 16 and 64 clients and Poisson arrivals against BentoML, LitServe and PyTriton."""
    yield from compared(bench, (BENTOML, LITSERVE, PYTRITON), (1, 16, 64), poisson=True)
