"""Nodes whose configuration names their models: archives checked before the start, models READY after it.

config.properties -> check_archives -> start_node -> verify (each model is READY) -> summary
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deploy.nodes.run import ServerError
from deploy.nodes.run.lifecycle import on_all, start_node
from deploy.nodes.run.machine import LocalNode
from deploy.nodes.run.properties import ServerSettings, excess_memory
from deploy.nodes.run.restore import Record
from deploy.nodes.run.server import Server
from deploy.nodes.run.summary import calls, rows
from deploy.places import ARCHIVE
from deploy.progress import show, step, warn
from torchserve_client.worker_log import WorkerLog, wait_loaded


class NotAsConfigured(ServerError):
    """The server's archives or models differ from the configuration."""


def start(nodes: Sequence[LocalNode]) -> None:
    """Start nodes of one configuration, check that they serve its models, and print the summary."""
    new = [node for node in nodes if node.server.pid() is None]
    try:
        models, *_ = on_all(verify, nodes)
    except BaseException:
        for node in new:
            with suppress(ServerError):  # the files of a server that died are kept for the message with its death
                node.server.stop()
            Record(node).remove()
        raise
    show(rows(nodes, models, calls(nodes[0].server, models)))


def check_archives(settings: ServerSettings, store: Path) -> None:
    """Raise NotAsConfigured if no model is named or an archive is missing."""
    _check_files(settings, store)
    if not settings.load_models or not settings.models:
        raise NotAsConfigured("load_models and models= name no model, and enable_model_api=false registers no other")


def check_load_models(server: Server) -> None:
    """Raise NotAsConfigured if `load_models` names a missing archive; TorchServe would serve the other models."""
    _check_files(server.settings, server.directory / server.settings.model_store)


def _check_files(settings: ServerSettings, store: Path) -> None:
    for file in settings.load_models:
        archive = store / file.rpartition("=")[2]
        if file.lower() != "all" and "://" not in file and not archive.exists():
            builds = f"{ARCHIVE} {archive.name.partition('.')[0]} builds it"
            raise NotAsConfigured(f"{archive} is missing, and load_models names it: {builds}")


def verify(node: LocalNode) -> list[tuple[str, str]]:
    """Start a node unless it runs; wait until all models are READY, and return their names and versions."""
    server = node.server
    named = server.settings.models
    check_archives(server.settings, server.directory / server.settings.model_store)
    if (problem := excess_memory(server.settings)) is not None:
        raise NotAsConfigured(f"{server.config.name}: {problem}")
    logs = {name: WorkerLog(server.logs / "model_log.log", name) for name in named}
    start_node(node)
    management = server.management
    models = management.all_versions()
    for name, version in models:
        if version not in named.get(name, ()) and not server.settings.has_model_api:
            raise NotAsConfigured(f"load_models registered {name} {version}, and models= has no entry for it")
    models = [(name, version) for name, version in models if version in named.get(name, ())]
    if lacking := named.keys() - {name for name, _ in models}:
        raise NotAsConfigured(f"models= names {', '.join(sorted(lacking))}, not registered; {_find_warning(server)}")
    prefix = "" if node.is_single else f"{node.name}: "
    with step(f"{prefix}{', '.join(name for name, _ in models)}: starting workers"):
        for name, version in models:
            if not server.settings.has_model_api or management.describe(name, version)["minWorkers"]:
                wait_loaded(management, name, logs[name], version)
    if server.settings.has_tokens and not server.key("inference"):
        raise ServerError(f"{server.keys} has no key: calls need one")
    if untrained := [name for name, version in models if version.endswith("-untrained")]:
        warn(f"{prefix}{', '.join(untrained)}: RANDOM weights: the predictions mean nothing.")
    return models


def _find_warning(server: Server) -> str:
    log = server.logs / "ts_log.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    warnings = [line for line in lines if "Failed to load model" in line]
    return warnings[-1].partition(" - ")[2] if warnings else f"see {log}"
