"""Equal OpenVINO graphs in ours, BentoML, LitServe and PyTriton, which contains Triton; infinity for embeddings.

a small network for digits, and MobileNetV2 -> ONNX files -> our archives, whose graphs every peer runs
    -> one TorchServe with both, and one process for each; each peer in a separate environment
ours and each peer -> for each number of clients the fastest of one copy with all threads and a copy per core with
    one thread, and of the peer's times to wait for a batch

Ours are archives of `task: tensors` without configuration. All servers have equal batch sizes, as many threads as
cores, their cheapest request bodies, kept-alive connections and no access log. Their scores are compared with torch's.
"""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy.archives.archive import Recipe
from deploy.models import model
from handlers.archive_files import GRAPH
from load.bench import embeddings, hosts, peer_process
from load.bench.archives import CPU_ONLY, copy_with
from load.bench.contender import Contender, Endpoint, Tuned, register
from load.bench.peer_graph import INPUT, OUTPUT, PeerGraph
from load.bench.peer_process import BENTOML, LITSERVE, PYTRITON, Peer
from load.bench.rounds import MOST_PEER_CLIENTS, Bench, Row, compare_with_peers, redirect_output
from load.bench.tuning import Tuning, choose, measure_rates
from load.generate import ClosedLoop
from load.inputs import Inputs
from load.results import Verdict
from load.sandbox import run_server
from torchserve_client import protocol
from torchserve_client.payloads import Json

OURS = "ours"
PEERS = (BENTOML, LITSERVE, PYTRITON)
STORE = "store"  # the model store, with archives as folders
OF_ONE_THREAD = "-of-one-thread"  # suffix of archives with a worker per core, each with one thread
# TorchServe's queue: the 64 requests of config.properties are 30 ms of the small network, and peers have no limit.
QUEUE = "job_queue_size=512"
ROWS = 64  # different rows to send
SCORES = 10  # numbers per response
TOLERANCE = 1e-3  # largest difference of a number in another runtime, as a share of the largest number


@dataclass(frozen=True, slots=True)
class Network:
    """A network with random weights, which do not change its time."""

    name: str
    graph: PeerGraph
    rows: NDArray[np.float32]  # (ROWS, *shape) float32
    expected: NDArray[np.float32]  # torch's scores, (ROWS, SCORES) float32


def export(work: Path) -> list[Network]:
    """Write the ONNX files: a network of 0.1 ms per row, and one of some 10 ms."""
    import torch  # noqa: PLC0415 - seconds, only needed here
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
        with redirect_output():
            options: Json = {"input_names": [INPUT], "output_names": [OUTPUT], "external_data": False}
            free = ({0: torch.export.Dim.DYNAMIC},)
            torch.onnx.export(network, (rows[:2],), work / f"{name}.onnx", dynamic_shapes=free, **options)
        with torch.inference_mode():
            expected = network(rows).numpy()
        graph = PeerGraph(str(work / STORE / name / GRAPH), shape, SCORES, size, len(os.sched_getaffinity(0)))
        found.append(Network(name, graph, rows.numpy(), expected))
    return found


def encode(network: Network) -> tuple[Inputs, Mapping[str, str]]:
    """Return each row as a binary request of the Open Inference Protocol, and their common headers."""
    bodies = [protocol.encode({INPUT: row[None]}, {}) for row in network.rows]
    (length,) = {length for _, length in bodies}
    return Inputs.of(body for body, _ in bodies), {protocol.HEADER: str(length)}


@contextmanager
def serve_ours(bench: Bench, networks: Sequence[Network]) -> Iterator[list[Tuned]]:
    """Serve every network with one TorchServe, with one worker or one per core."""
    work = bench.work
    listed = work / "models.yaml"
    entries = {each.name: {"task": "tensors", "version": "1", "weights": f"{each.name}.onnx"} for each in networks}
    listed.write_text(json.dumps(entries), encoding="utf-8")  # JSON is YAML
    with redirect_output():
        for name in entries:
            built = Recipe(model(name, listed), archive_format="no-archive", export_path=work / STORE).build()
            copy_with(built.path, f"{name}{OF_ONE_THREAD}", threads=1)
    with run_server(work / STORE, extra=(*CPU_ONLY, QUEUE)) as server:
        tuned = []
        for network in networks:
            (inputs, headers), size = encode(network), network.graph.batch_size
            choices = {
                Tuning(copies, 1): replace(
                    register(server, f"{network.name}{kind}", OURS, inputs, size, workers=copies), headers=headers
                )
                for kind, copies in ((OF_ONE_THREAD, network.graph.threads), ("", 1))
            }
            title, same = f"{network.name}, {OURS}", partial(check, network.expected)
            rates = {tuning: measure_rates(title, tuning, each, same) for tuning, each in choices.items()}
            chosen = choose(bench, title, rates)
            tuned.append(Tuned(OURS, {clients: choices[tuning] for clients, tuning in chosen.items()}))
        yield tuned


@contextmanager
def serve_peer(bench: Bench, peer: Peer, network: Network) -> Iterator[Tuned]:
    """Serve a network with a peer, tuned for each number of clients."""
    inputs = Inputs.of(map(peer.encode, network.rows))

    @contextmanager
    def serve(tuning: Tuning) -> Iterator[Endpoint]:
        graph = replace(network.graph, copies=tuning.copies, wait_ms=tuning.wait_ms)
        with peer_process.start(peer, inputs.items[0].body, graph.to_environment()) as process:
            process.signal(signal.SIGSTOP)  # until it is measured
            yield Endpoint(peer.name, process.url, inputs, headers=peer.headers, process=process)

    title, rates = f"{network.name}, {peer.name}", {}
    for tuning in map(Tuning._make, product({network.graph.threads, 1}, peer.waits_ms)):
        with serve(tuning) as endpoint:
            rates[tuning] = measure_rates(title, tuning, endpoint, partial(check, network.expected))
    chosen = choose(bench, title, rates)
    with ExitStack() as stack:
        # A process for each number of clients: BentoML's batching remembers other loads for minutes.
        yield Tuned(peer.name, {clients: stack.enter_context(serve(tuning)) for clients, tuning in chosen.items()})


def check(expected: NDArray[np.float32], number: int, body: bytes) -> Verdict:
    """Compare the scores at the end of a response with torch's, (ROWS, SCORES)."""
    values = np.frombuffer(body[-4 * SCORES :], np.float32)
    is_right = values.size == SCORES and np.allclose(values, expected[number], 0, TOLERANCE * np.abs(expected).max())
    return Verdict.RIGHT if is_right else Verdict.WRONG


def measure(bench: Bench) -> Iterator[Row]:
    first = replace(bench, ends_s=bench.clock() + 2 / 3 * (bench.ends_s - bench.clock()))
    networks, contenders = export(bench.work), dict[str, list[Contender]]()
    with ExitStack() as stack:
        for network, ours in zip(networks, stack.enter_context(serve_ours(bench, networks)), strict=True):
            peers = [stack.enter_context(serve_peer(bench, peer, network)) for peer in PEERS]
            store, same = bench.work / STORE / network.name, partial(check, network.expected)
            peers.insert(0, stack.enter_context(hosts.serve_tuned(bench, store, *encode(network), same)))
            contenders[network.name] = [ours, *peers]
            bench.settle(contenders[network.name], ClosedLoop(MOST_PEER_CLIENTS))
        yield from compare_with_peers(first, contenders, "rows/s")
    yield from embeddings.measure(bench)
