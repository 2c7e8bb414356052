"""Nodes whose configuration names their models: archives checked before the start, models proven READY after it.

config.properties -> check_archives -> nodes started -> prove (each model is READY, the heap holds what may queue)
                                                     -> calls (the lines that a client types, with the key)
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.models import ROOT
from deploy.run.machine import LocalNode
from deploy.run.nodes import banner, start_node
from deploy.run.properties import Settings
from deploy.run.restore import Record
from deploy.run.server import Server, ServerError
from torchserve_client.worker_log import WorkerLog, wait_loaded

MIB = 2**20
# Java's memory, as measured of TorchServe 0.12.0 on Java 17 with prefer_direct_buffer=true and bodies of 8 MiB.
# A body lies in direct memory while it arrives, with its buffer at most 1.45 times its size; then on the heap until it
# is answered; and as its batch goes to the worker once more in direct memory, where the buffer grows by copying.
IDLE_BYTES = 64 * MIB  # of the heap without a request: 27 to 50 MiB
USABLE = 0.8  # of the heap; 95 % held, but G1 leaves gaps between large arrays
HEAP_COPIES = 2  # of a body that a thread has just read
ARRIVING, LEAVING = 1.5, 2  # direct memory over a body's size
REGIONS, HEADER_BYTES = 2048, 16  # G1's choice of regions of a heap; header of an array


class NotAsConfigured(ServerError):
    """The configuration names what is not there, or not what is."""


def start(nodes: Sequence[LocalNode]) -> None:
    """Start nodes of one configuration, prove that they serve what is named, and print how to call it.

    Raises:
        ServerError: something is not as it should be. The nodes that this call has started are stopped again.
    """
    new = [node for node in nodes if node.server.pid() is None]
    try:
        with ThreadPoolExecutor(len(nodes)) as pool:
            proven = list(pool.map(prove, nodes))
    except BaseException:
        for node in new:
            # A server that died is left as it is, for the message that says of what.
            with suppress(ServerError):
                node.server.stop()
            Record(node).forget()
        raise
    for node, models in zip(nodes, proven, strict=True):
        for line in calls(node.server, models):
            print(f"\n$ {line}")


def check_archives(settings: Settings, store: Path) -> None:
    """Check that the configuration names models, and that their archives are there.

    Args:
        settings: the server's.
        store: its model store.

    Raises:
        NotAsConfigured: none is named, or an archive is missing: TorchServe would log a warning, and serve the rest.
    """
    for file in settings.load_models:
        archive = store / file.rpartition("=")[2]
        if file.lower() != "all" and not archive.exists():
            builds = f"./archive.sh {archive.name.partition('.')[0]} builds it"
            raise NotAsConfigured(f"{archive} is missing, which load_models names: {builds}")
    if not settings.load_models or not settings.models:
        raise NotAsConfigured("load_models and models= name no model, and enable_model_api=false registers no other")


def prove(node: LocalNode) -> list[tuple[str, str]]:
    """Start a node unless it runs, wait until all that is named is READY, and check that the heap holds what may queue.

    Returns:
        Name and version of each model.

    Raises:
        LoadFailed: a worker does not come up; in its own words.
        NotAsConfigured: what is registered is not what is named, or the heap is too small for the limits.
        ServerError: the server did not start, or its key is missing.
        ManagementError: it does not answer.
    """
    server = node.server
    named = server.settings.models
    check_archives(server.settings, server.directory / server.settings.model_store)
    logs = {name: WorkerLog(server.logs / "model_log.log", name) for name in named}
    start_node(node)
    management = server.management
    models = management.registered()
    for name, version in models:
        if version not in named.get(name, ()) and not server.settings.has_model_api:
            raise NotAsConfigured(f"load_models holds {name} {version}, which models= has no entry for")
    models = [(name, version) for name, version in models if version in named.get(name, ())]
    if lacking := named.keys() - {name for name, _ in models}:
        raise NotAsConfigured(f"models= names {', '.join(sorted(lacking))}, not registered; {_warning(server)}")
    prefix = "" if node.is_alone else f"{node.name}: "
    print(f"{prefix}{', '.join(name for name, _ in models)}: waiting for workers ...", flush=True)
    for name, version in models:
        if not server.settings.has_model_api or management.describe(name, version)["minWorkers"]:
            wait_loaded(management, name, logs[name], version)
    held = held_requests(management.describe(*model) for model in models)
    if (problem := too_little_memory(server.settings, *held)) is not None:
        raise NotAsConfigured(f"{server.config.name}: {problem}")
    if server.settings.has_tokens and not server.key("inference"):
        raise ServerError(f"{server.keys} has no key: calls need one")
    for name, version in models:
        print(f"{prefix}{name}: READY, version {version}", flush=True)
    if untrained := [name for name, version in models if version.endswith("-untrained")]:
        banner(f"{prefix}{', '.join(untrained)}: RANDOM weights: the answers mean nothing.")
    return models


def _warning(server: Server) -> str:
    log = server.logs / "ts_log.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    warnings = [line for line in lines if "Failed to load model" in line]
    return warnings[-1].partition(" - ")[2] if warnings else f"{log} may say why"


def held_requests(described: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many requests models may hold: in TorchServe's queues, and in flight to workers.

    Args:
        described: what `GET /models/M` answers of each model.
    """
    queued = in_flight = 0
    for model in described:
        queue = model["jobQueueStatus"]
        queued += int(queue["remainingCapacity"]) + int(queue["pendingRequests"])
        in_flight += int(model["batchSize"]) * max(1, int(model["maxWorkers"]), len(model["workers"]))
    return queued, in_flight


def java_memory(settings: Settings, queued: int, in_flight: int) -> tuple[int, int]:
    """Return the bytes of heap and of direct memory that hold so many requests, each of the largest size."""
    region = MIB
    while region < min(32 * MIB, (settings.heap_bytes or 0) / REGIONS):
        region *= 2
    body = settings.max_request_size
    on_heap = -(-(body + HEADER_BYTES) // region) * region  # a large array has regions of its own
    requests = queued + in_flight
    heap = IDLE_BYTES + on_heap * (requests + HEAP_COPIES * settings.threads)
    return int(heap / USABLE), int(body * (ARRIVING * requests + LEAVING * in_flight))


def too_little_memory(settings: Settings, queued: int, in_flight: int) -> str | None:
    """Return in one line what vmargs lacks for the worst case; None where Java has enough memory."""
    if settings.heap_bytes is None or settings.direct_bytes is None:
        return "vmargs names no -Xmx: the heap must be known to say whether it holds what may be queued"
    needed, given = java_memory(settings, queued, in_flight), (settings.heap_bytes, settings.direct_bytes)
    if needed[0] <= given[0] and needed[1] <= given[1]:
        return None
    heap_mib, direct_mib = (-(-size // MIB) for size in needed)
    return (
        f"{queued + in_flight} requests may be held at once, each of max_request_size {settings.max_request_size}: "
        f"that needs -Xmx{heap_mib}m and -XX:MaxDirectMemorySize={direct_mib}m, and vmargs gives "
        f"{given[0] // MIB}m and {given[1] // MIB}m; raise these, or lower job_queue_size "
        "(an archive's own jobQueueSize wins over it), batch_size or max_request_size"
    )


def calls(server: Server, models: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines that ask each model for a prediction, with the server's key.

    Raises:
        ServerError: its file of keys cannot be used.
    """
    key = server.key("inference")
    header = f'-H "Authorization: Bearer {key}" ' if key else ""
    url = f"{server.settings.inference_url}/predictions"
    return [f"curl {header}{_sample(name)} {url}/{name}" for name, _ in models]


def _sample(name: str) -> str:
    """Options of curl that send a file of the example of that name, or a placeholder."""
    folder = ROOT / "examples" / name
    for path in sorted(folder.glob("*.jpg")):
        return f"-T {path.relative_to(ROOT)}"
    for path in sorted(path for path in folder.glob("*.json") if not re.search(r"expected|index_to", path.name)):
        return f'-H "Content-Type: application/json" -d @{path.relative_to(ROOT)}'
    return "-T FILE"
