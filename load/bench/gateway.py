"""Measures what the gateway costs: through it against straight to TorchServe, and gRPC against HTTP through it.

    archives -> one server with language-id, ResNet-152 and the embedding model -> the gateway in front of it
    for each round: each figure straight to the server and through the gateway, one right after the other

The load generator, Envoy and TorchServe share the machine's cores: what Envoy takes of them is missing to the others,
so a ratio is the lower, the less a request costs the model. Three rounds take some five minutes on two cores.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deploy.archive import Recipe
from deploy.gateway import sandbox
from deploy.models import model
from deploy.sandbox import started
from deploy.server import Server
from load.bench.archives import OURS, ours
from load.bench.binary_clients import Call, grpc_call, grpc_requests, http_call, http_requests, measure
from load.bench.machine import Processor, wait_idle
from load.bench.peers import CPU_ONLY, ServedModel
from load.bench.peers import TUNING as PEERS
from load.bench.photographs import photographs
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds
from load.bench.sentences import texts
from load.bench.table import Bound, Row, differences, ratios, render
from load.bench.texts import EMBEDDING, LANGUAGE_ID


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how the models are registered and asked."""

    # Clients of language identification, with one text a request: what is asked of the gateway.
    clients: int = 64
    # Clients of ResNet-152: three of its batches.
    image_clients: int = 48
    # Requests of a batch of texts: half of the clients, so that one batch waits while one runs.
    batch_size: int = 32
    # Milliseconds that a batch waits: the least that TorchServe takes, since a loaded queue fills batches by itself.
    max_batch_delay_ms: int = 1
    # Words of a text: some 16 tokens, a sentence; the shorter, the more a request is the gateway's cost.
    words: int = 16
    # Clients of the binary tensors, over HTTP and gRPC.
    tensor_clients: int = 32
    # Seconds under load before the window of the binary tensors opens.
    warm_up_s: float = 1.0


TUNING = Tuning()

# This deployment is held to these bounds.
OF_LANGUAGE_ID = Bound(0.85, is_minimum=True)
OF_RESNET = Bound(0.98, is_minimum=True)
MORE_MS = Bound(0.6, is_minimum=False)
GRPC_OF_HTTP = Bound(1.0, is_minimum=True)
# Quantity -> way -> a value for each round.
Figures = dict[str, dict[str, list[float]]]
LANGUAGES_PER_S = f"language id, {TUNING.clients} clients, texts/s"
IMAGES_PER_S = f"ResNet-152, {TUNING.image_clients} clients, images/s"
ONE_CLIENT_P50_MS = "language id, 1 client, p50 in ms"
TENSORS_PER_S = f"embedding, binary tensors, {TUNING.tensor_clients} clients, texts/s"
HTTP, GRPC = "HTTP", "gRPC"
STRAIGHT, THROUGH = "straight", "through the gateway"


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    figures: Figures = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        store = _store(Path(folder))
        with (
            started(store, extra=CPU_ONLY) as server,
            sandbox.started([sandbox.node_of(server)]) as gateway,
        ):
            for name, bodies in BODIES.items():
                _model(server, name, bodies()).register()
            for each in rounds:
                for what, measured in _figures(server, gateway, duration_s).items():
                    # The one that goes first is another in every round.
                    for way in sorted(measured, reverse=each.number % 2 == 0):
                        wait_idle()
                        value = measured[way]()
                        progress(f"{each}, {what}, {way}: {value:.2f}")
                        figures[what][way].append(value)
    return "\n".join(
        [
            f"Through the gateway against straight to TorchServe (under `stock`) on {Processor.here()}; "
            f"texts of {TUNING.words} words; batch_size {TUNING.batch_size} for texts and {PEERS.batch_size} for "
            f"images, max_batch_delay {TUNING.max_batch_delay_ms} ms, 1 worker; clients on the same cores",
            "",
            render(table(figures), is_markdown=is_markdown),
        ]
    )


def table(figures: Figures) -> list[Row]:
    """Make the rows; what goes straight to TorchServe, or over HTTP, stands under `stock`."""
    rows = []
    for what, bound in ((LANGUAGES_PER_S, OF_LANGUAGE_ID), (IMAGES_PER_S, OF_RESNET)):
        straight, ours = figures[what][STRAIGHT], figures[what][THROUGH]
        rows.append(Row(f"{what}: gateway / straight", straight, ours, [], ratios(ours, straight), bound=bound))
    straight, ours = figures[ONE_CLIENT_P50_MS][STRAIGHT], figures[ONE_CLIENT_P50_MS][THROUGH]
    over_http, over_grpc = figures[TENSORS_PER_S][HTTP], figures[TENSORS_PER_S][GRPC]
    return [
        *rows,
        Row(f"{ONE_CLIENT_P50_MS}: gateway - straight", straight, ours, [], differences(ours, straight), digits=2,
            bound=MORE_MS),
        Row(f"{TENSORS_PER_S}: gRPC / HTTP", over_http, over_grpc, [], ratios(over_grpc, over_http),
            bound=GRPC_OF_HTTP),
    ]  # fmt: skip


def short_texts() -> list[str]:
    """Make texts of one length, about a sentence."""
    return [" ".join((text.split() * TUNING.words)[: TUNING.words]) for text in texts()]


def short_bodies() -> list[bytes]:
    """Make bodies of one such text each."""
    return [json.dumps({"text": text}).encode() for text in short_texts()]


def _store(work: Path) -> Path:
    store = work / "model_store"
    store.mkdir()
    progress(f"archives: {', '.join(BODIES)}")
    with aside():
        (store / f"{OURS}.mar").symlink_to(ours(work / "built").path)
        for name in (LANGUAGE_ID, EMBEDDING):
            Recipe(model(name), export_path=store).build()
    return store


def _model(server: Server, name: str, bodies: Sequence[bytes], address: str | None = None) -> ServedModel:
    batch_size = PEERS.batch_size if name == OURS else TUNING.batch_size
    return ServedModel(server, name, bodies, batch_size, TUNING.max_batch_delay_ms, address=address)


def _figures(server: Server, gateway: sandbox.Sandbox, duration_s: float) -> dict[str, dict[str, Callable[[], float]]]:
    """Say what is measured, in turn, and how: a quantity -> the ways that are compared -> one measurement."""

    def per_s(name: str, clients: int, address: str | None) -> float:
        return _model(server, name, BODIES[name](), address).measure(clients, duration_s).throughput_per_s

    def p50_ms(address: str | None) -> float:
        return _model(server, LANGUAGE_ID, short_bodies(), address).measure(1, duration_s).p50_s * 1e3

    def tensors_per_s(call: AbstractAsyncContextManager[Call]) -> float:
        return measure(call, TUNING.tensor_clients, duration_s, TUNING.warm_up_s).throughput_per_s

    ways = {STRAIGHT: None, THROUGH: gateway.http}
    sent = short_texts()
    return {
        LANGUAGES_PER_S: {way: partial(per_s, LANGUAGE_ID, TUNING.clients, at) for way, at in ways.items()},
        IMAGES_PER_S: {way: partial(per_s, OURS, TUNING.image_clients, at) for way, at in ways.items()},
        ONE_CLIENT_P50_MS: {way: partial(p50_ms, at) for way, at in ways.items()},
        TENSORS_PER_S: {
            HTTP: lambda: tensors_per_s(http_call(gateway.http, EMBEDDING, http_requests(sent))),
            GRPC: lambda: tensors_per_s(grpc_call(gateway.grpc, grpc_requests(EMBEDDING, sent))),
        },
    }


BODIES: dict[str, Callable[[], Sequence[bytes]]] = {
    LANGUAGE_ID: short_bodies,
    EMBEDDING: short_bodies,
    OURS: photographs,
}
