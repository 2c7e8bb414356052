"""Nodes whose configuration names their models: archives checked before the start, models proven READY after it.

config.properties -> check_archives -> nodes started -> prove (each model is READY)
                                                     -> calls (the lines that a client types, with the key)
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from deploy.models import ROOT
from deploy.progress import show, step
from deploy.run.machine import LocalNode
from deploy.run.nodes import banner, start_node
from deploy.run.properties import Settings
from deploy.run.restore import Record
from deploy.run.server import Server, ServerError
from deploy.run.summary import rows
from torchserve_client.worker_log import WorkerLog, wait_loaded

MIB = 2**20
# Memory limits of this process' control group, of version 2 and of version 1.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class NotAsConfigured(ServerError):
    """The configuration names what is not there, or not what is."""


def start(nodes: Sequence[LocalNode]) -> None:
    """Start nodes of one configuration, prove that they serve what is named, and print the summary.

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
    show(rows(nodes, proven[0], calls(nodes[0].server, proven[0])))


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
    """Start a node unless it runs, and wait until all that is named is READY.

    Returns:
        Name and version of each model.

    Raises:
        LoadFailed: a worker does not come up; in its own words.
        NotAsConfigured: what is registered is not what is named, or Java may take more than the memory limit.
        ServerError: the server did not start, or its key is missing.
        ManagementError: it does not answer.
    """
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
            raise NotAsConfigured(f"load_models holds {name} {version}, which models= has no entry for")
    models = [(name, version) for name, version in models if version in named.get(name, ())]
    if lacking := named.keys() - {name for name, _ in models}:
        raise NotAsConfigured(f"models= names {', '.join(sorted(lacking))}, not registered; {_warning(server)}")
    prefix = "" if node.is_alone else f"{node.name}: "
    with step(f"{prefix}{', '.join(name for name, _ in models)}: starting workers"):
        for name, version in models:
            if not server.settings.has_model_api or management.describe(name, version)["minWorkers"]:
                wait_loaded(management, name, logs[name], version)
    if server.settings.has_tokens and not server.key("inference"):
        raise ServerError(f"{server.keys} has no key: calls need one")
    if untrained := [name for name, version in models if version.endswith("-untrained")]:
        banner(f"{prefix}{', '.join(untrained)}: RANDOM weights: the answers mean nothing.")
    return models


def _warning(server: Server) -> str:
    log = server.logs / "ts_log.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    warnings = [line for line in lines if "Failed to load model" in line]
    return warnings[-1].partition(" - ")[2] if warnings else f"{log} may say why"


def excess_memory(settings: Settings) -> str | None:
    """Return in one line by how much vmargs exceeds the memory limit; None if Java fits."""
    limits = [int(path.read_text()) for path in LIMITS if path.is_file() and path.read_text().strip().isdecimal()]
    limit = min([psutil.virtual_memory().total, *limits])
    java = (settings.heap_bytes or 0) + (settings.direct_bytes or 0)
    if java <= limit:
        return None
    return (
        f"vmargs lets Java take {java // MIB} MiB (-Xmx and MaxDirectMemorySize), and the memory limit is "
        f"{limit // MIB} MiB; lower them, and job_queue_size or max_request_size with them"
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
