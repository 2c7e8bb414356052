"""A server whose configuration names its models: what must be so before it starts, and what is proven once it has.

config.properties + archives of the model store -> named     (every model has its archive and its entry)
Server, started                                 -> prove     (each is READY, and the heap holds what may queue)
                                                -> calls     (the lines that a client types, with the key)
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.memory import Served, too_little
from deploy.models import ROOT
from deploy.run.properties import Settings
from deploy.run.server import LoadFailed, Server, ServerError
from torchserve_client.archives import describe
from torchserve_client.errors import InvalidPayload
from torchserve_client.errors import LoadFailed as NotLoaded
from torchserve_client.management import POLL_S, ManagementError
from torchserve_client.worker_log import WorkerLog, wait_loaded

# What TorchServe takes for an archive where load_models says "all".
ARCHIVES = (".mar", ".tar.gz")
# Seconds that TorchServe is given to register an archive after it answers; it registers first, as far as was seen.
REGISTRATION_S = 10.0


class NotAsConfigured(ServerError):
    """The configuration names what is not there, or not what is."""


@dataclass(frozen=True, slots=True)
class Named:
    """One model that a configuration names, and the archive that holds it."""

    name: str
    version: str
    archive: str

    @property
    def is_untrained(self) -> bool:
        """Whether its weights are random."""
        return self.version.endswith("-untrained")


def named(settings: Settings, store: Path) -> list[Named]:
    """Find what the configuration names.

    Args:
        settings: the server's.
        store: its model store.

    Raises:
        NotAsConfigured: an archive is missing, is none, or is not the one that `models` has an entry for. TorchServe
            itself would start, log a warning, and serve the rest.
    """
    files = settings.load_models
    if not files:
        raise NotAsConfigured("load_models names no archive, and with enable_model_api=false none can be registered")
    if [file.lower() for file in files] == ["all"]:
        files = tuple(sorted(path.name for path in store.iterdir() if path.name.endswith(ARCHIVES)))
    found = [_named(file, settings, store) for file in files]
    lacking = settings.models.keys() - {model.name for model in found}
    if lacking:
        raise NotAsConfigured(f"models= names {', '.join(sorted(lacking))}, which no archive of load_models holds")
    return found


def _named(file: str, settings: Settings, store: Path) -> Named:
    wanted, _, archive = file.rpartition("=")
    if not (store / archive).exists():
        raise NotAsConfigured(
            f"{store / archive} is missing, which load_models names: ./archive.sh {archive.partition('.')[0]} builds it"
        )
    try:
        manifest = describe(store / archive)
    except InvalidPayload as error:
        raise NotAsConfigured(error.message) from None
    name, version = wanted or manifest.name, manifest.version
    entry = settings.models.get(name)
    if entry is None:
        names = ", ".join(settings.models) or "none"
        raise NotAsConfigured(f"{archive} holds {name}, which models= has no entry for; it names {names}")
    if version not in entry:
        raise NotAsConfigured(f"{archive} holds {name} {version}, and models= names {' and '.join(entry)}")
    mar = entry[version].get("marName", archive)
    if mar != archive:
        raise NotAsConfigured(f"models= has marName {mar} for {name} {version}, and load_models names {archive}")
    return Named(name, version, archive)


def logs(server: Server, models: Sequence[Named]) -> list[WorkerLog]:
    """What the workers of each model print from now on."""
    return [WorkerLog(server.logs / "model_log.log", model.name, model.version) for model in models]


def prove(server: Server, models: Sequence[Named], printed: Sequence[WorkerLog]) -> None:
    """Wait until every worker of every model is READY, and check that the heap holds what may queue.

    Args:
        server: the running server.
        models: those that it should serve.
        printed: what the workers of each print, from before they were started on.

    Raises:
        LoadFailed: a worker does not come up; in its own words.
        NotAsConfigured: a model is not registered, or the heap is too small for the limits.
        ManagementError: the server does not answer.
    """
    described = []
    for model, log in zip(models, printed, strict=True):
        _wait_registered(server, model)
        try:
            wait_loaded(server.management, model.name, log, model.version)
        except NotLoaded as error:
            raise LoadFailed(error.message) from None
        described.append(Served.described(server.management.describe(model.name, model.version)))
    problem = too_little(server.settings, described)
    if problem is not None:
        raise NotAsConfigured(f"{server.config.name}: {problem}")


def _wait_registered(server: Server, model: Named) -> None:
    deadline = time.monotonic() + REGISTRATION_S
    while True:
        try:
            server.management.describe(model.name, model.version)
            return
        except ManagementError as error:
            if error.status != 404:
                raise
        if time.monotonic() > deadline:
            raise NotAsConfigured(f"{model.name} {model.version} is not registered; {_warning(server)}")
        time.sleep(POLL_S)


def _warning(server: Server) -> str:
    log = server.logs / "ts_log.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    warnings = [line for line in lines if "Failed to load model" in line]
    return warnings[-1].partition(" - ")[2] if warnings else f"{log} may say why"


def calls(server: Server, models: Sequence[Named], key: str | None) -> list[str]:
    """Write the lines that ask each model for a prediction.

    Args:
        server: the running server.
        models: those that it serves.
        key: of the inference API, as a shell has it: the key itself, or a command that prints it; None for no header.
    """
    header = f'-H "Authorization: Bearer {key}" ' if key else ""
    lines = []
    for model in models:
        address = f"{server.settings.inference_url}/predictions/{model.name}"
        lines.append(f"curl {header}{_sample(model.name)} {address}")
    return lines


def _sample(name: str) -> str:
    """Options of curl that send what lies in the example of that name, or a word for what would."""
    folder = ROOT / "examples" / name
    for path in sorted(folder.glob("*.jpg")):
        return f"-T {path.relative_to(ROOT)}"
    for path in sorted(path for path in folder.glob("*.json") if not re.search(r"expected|index_to", path.name)):
        return f'-H "Content-Type: application/json" -d @{path.relative_to(ROOT)}'
    return "-T FILE"
