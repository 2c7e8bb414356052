"""Ours, as the peers' peer: a TorchServe with each network as an archive of tensors, classic and adaptive.

ONNX files -> a list of models -> archives -> one server -> Contenders, which send and take .npy files
"""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.archive import Recipe
from deploy.models import model
from deploy.sandbox import started
from deploy.server import Server
from load.bench import identity
from load.bench.contenders import Contender
from load.bench.networks import Network
from load.bench.peers import CPU_ONLY
from load.bench.progress import aside, progress

OURS, ADAPTIVE = "ours", "ours, adaptive"

CLASSIC: dict[str, Any] = {"handler": {"scheduling": {"mode": "classic"}}}


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what the models are registered with."""

    # ms that a batch of ours waits: the least that TorchServe takes, since a loaded queue fills batches by itself.
    max_batch_delay_ms: int = 1
    # Requests that an adaptive worker chooses from, and ms within which it is to answer: more than 64 clients of the
    # deep network take.
    window: int = 64
    max_latency_ms: int = 5000


TUNING = Tuning()


def npy(row: Any) -> bytes:
    """Write an array as a .npy file."""
    file = io.BytesIO()
    np.save(file, row)
    return file.getvalue()


@contextmanager
def serving(work: Path, both: Sequence[Network]) -> Iterator[Server]:
    """Build the archives of every network, classic and adaptive, and of the identity; start a server with all."""
    store = work / "model_store"
    store.mkdir()
    entries: dict[str, dict[str, str]] = {}
    for network in both:
        entry = {"handler": "tensors", "version": "1", "weights": network.path.name}
        entries |= {network.name: entry, _adaptive(network.name): entry}
        configs = {network.name: CLASSIC, _adaptive(network.name): _adaptive_config(network.batch_size)}
        for name, config in configs.items():
            (work / name).mkdir()
            (work / name / "model-config.yaml").write_text(json.dumps(config), encoding="utf-8")
    models = work / "models.yaml"
    models.write_text(json.dumps(entries), encoding="utf-8")  # JSON is YAML
    progress(f"archives: {', '.join(entries)}")
    with aside():
        for name in entries:
            Recipe(model(name, models), export_path=store).build()
        identity.build(store, work / "identity")
    with started(store, extra=CPU_ONLY) as server:
        for network in both:
            for name, size in ((network.name, network.batch_size), (_adaptive(network.name), TUNING.window)):
                delay_ms = TUNING.max_batch_delay_ms
                server.register(name, f"{name}.mar", batch_size=size, max_batch_delay_ms=delay_ms, workers=1)
        identity.register(server)
        yield server


def _adaptive(name: str) -> str:
    return f"{name}-adaptive"


def _adaptive_config(batch_size: int) -> dict[str, Any]:
    scheduling = {
        "mode": "adaptive",
        "max_latency_ms": TUNING.max_latency_ms,
        "max_batch_items": batch_size,
        "queue_timeout_ms": 10 * TUNING.max_latency_ms,
    }
    return {
        "continuousBatching": True,
        "batchSize": TUNING.window,
        "maxBatchDelay": TUNING.max_batch_delay_ms,
        "minWorkers": 1,
        "maxWorkers": 1,
        "responseTimeout": 60,
        "startupTimeout": 120,
        "handler": {"scheduling": scheduling},
    }


def contenders(server: Server, network: Network, rows: int) -> list[Contender]:
    """Say how both modes of a network are asked, with so many rows in turn."""
    bodies = [npy(row[None]) for row in network.rows(rows)]
    kind = "application/x-npy"
    return [
        Contender(
            contender,
            f"{server.settings.inference_url}/predictions/{name}",
            bodies,
            lambda body: np.load(io.BytesIO(body)),
            kind,
            {"Accept": kind},
        )
        for contender, name in ((OURS, network.name), (ADAPTIVE, _adaptive(network.name)))
    ]
