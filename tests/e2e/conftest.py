"""One real TorchServe for the session, on free ports, with archives built as a user builds them.

Starting a worker costs seconds of a core: tests of a module share their models, and `serve` registers one again only
if a test has changed something about it.
"""

import fcntl
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
import yaml

from deploy.archives.archive import Recipe
from deploy.models import ModelEntry, model
from deploy.nodes.run.server import Server
from load import sandbox
from load.sandbox import Sandbox, run_server
from tests.exports import shared
from tests.waiting import until
from torchserve_client.files import copy_folder, remove
from torchserve_client.management import ManagementError

MOBILENET = "mobilenet-v2"
STARTUP_TIMEOUT_S = 90
# Settings that make an archive adaptive, as archive.sh writes them.
ADAPTIVE = {"continuousBatching": True, "maxBatchDelay": 1, "minWorkers": 1, "maxWorkers": 1}


# Modules that take longest, in this order: processes that run modules side by side end together if these come first.
LONGEST = ("doors", "nodes", "readme", "conformance", "tasks", "failures", "rollout", "gateway", "production")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest modules first; xdist deals modules in the order of their first tests."""

    def place(item: pytest.Item) -> int:
        name = item.path.stem.removeprefix("test_")
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


# Builds, varies or serves an archive, and returns its name.
Make = Callable[..., str]


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def batch_size(self) -> int:
        return int(self.headers["Server-Timing"].rpartition("batch;desc=")[2].strip('"'))


@contextmanager
def alone() -> Iterator[None]:
    """Let one process at a time build archives, so that each export is made once."""
    with (shared() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def archive(model_store: Path) -> Make:
    """Build an archive in the session's model store, unless it is there; returns its file's name."""

    def build(name: str | ModelEntry, weights: str | None = None, **options: Any) -> str:
        entry = model(name) if isinstance(name, str) else name
        recipe = Recipe(entry, weights, export_path=model_store, **options)
        with alone():
            return (recipe.find() or recipe.build()).path.name

    return build


@pytest.fixture(scope="session")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mobilenet-v2 as an archive, and as a folder to vary."""
    store = tmp_path_factory.mktemp("model_store")
    # Where a recipe of this store looks for what it would have to export.
    (store / ".exports").symlink_to(shared())
    with alone():
        for archive_format in ("zip-store", "no-archive"):
            Recipe(model(MOBILENET), archive_format=archive_format, export_path=store).build()
    return store


@pytest.fixture(scope="session")
def server(model_store: Path) -> Iterator[Server]:
    with run_server(model_store) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Server) -> Iterator[Sandbox]:
    """Envoy and the control process in front of the session's TorchServe.

    It asks every new model what it takes, and the question has a place in a batch: so it ends with its module.
    """
    with sandbox.run_gateway([sandbox.make_node(server)]) as running:
        yield running


class Registrations:
    def __init__(self, server: Server) -> None:
        # Name -> what was asked for, and the versions and workers that came of it.
        self._server, self._known = server, dict[str, object]()

    def serve(self, name: str, archive: str, parameters: dict[str, int]) -> None:
        """Serve exactly this, by workers that no test has changed."""
        if self._known.get(name) != (archive, parameters, self._state(name)):
            with suppress(ManagementError):
                self._server.management.unregister(name)
            self._server.register(name, archive, **parameters)
            self._known[name] = archive, parameters, self._state(name)

    def _state(self, name: str) -> object:
        """Versions and settings of a model, and its workers' processes; None while it is not ready."""
        management = self._server.management
        with suppress(ManagementError):
            if management.is_ready(name):
                described = management.describe(name)
                workers = sorted((worker["id"], worker["pid"], worker["status"]) for worker in described["workers"])
                return management.versions(name), described["minWorkers"], described["maxWorkers"], workers
        return None

    def clear(self) -> None:
        self._known.clear()
        for name in self._server.management.models():
            self._server.management.unregister(name)


@pytest.fixture(scope="module")
def registrations(server: Server) -> Iterator[Registrations]:
    """A module starts and ends with nothing registered."""
    made = Registrations(server)
    made.clear()
    yield made
    made.clear()


@pytest.fixture
def serve(registrations: Registrations) -> Make:
    """Have an archive served, by a worker that tests before may have used; returns the model's name."""

    def register(archive: str = f"{MOBILENET}.mar", name: str = MOBILENET, **parameters: int) -> str:
        registrations.serve(name, archive, {"batch_size": 8, "max_batch_delay_ms": 20, "workers": 1, **parameters})
        return name

    return register


def vary(store: Path, name: str, of: str, handler: Mapping[str, Any], settings: Mapping[str, Any]) -> Path:
    """Copy an archive's folder under another name, with other settings; returns the copy."""
    folder = store / name
    copy_folder(store / of, folder)
    path = folder / "model-config.yaml"
    config = {**yaml.safe_load(path.read_text()), **settings}
    config["handler"].update(handler)
    path.write_text(yaml.safe_dump(config))
    manifest_path = folder / "MAR-INF" / "MANIFEST.json"
    manifest = json.loads(manifest_path.read_text())
    manifest["model"]["modelName"] = name
    manifest_path.write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def variant(model_store: Path, server: Server) -> Iterator[Make]:
    """Copy a folder of the model store under another name, with other settings; returns the name."""
    made: list[Path] = []

    def make(name: str, *, of: str = MOBILENET, handler: dict[str, Any] | None = None, **settings: Any) -> str:
        made.append(vary(model_store, name, of, handler or {}, settings))
        return name

    yield make
    for folder in made:
        with suppress(ManagementError):
            server.management.unregister(folder.name)
        until(lambda folder=folder: is_removed(folder))  # type: ignore[misc]


def is_removed(folder: Path) -> bool:
    """Remove a folder; False if a killed worker was writing there until now."""
    remove(folder)
    return not folder.exists()


def worker_pid(server: Server, name: str) -> int:
    """The process of a model's one worker, once it has one: the management API calls a starting worker's -1."""

    def pid() -> int:
        (worker,) = server.management.describe(name)["workers"]
        return int(worker["pid"])

    until(lambda: pid() > 1, STARTUP_TIMEOUT_S)
    return pid()


def url(server: Server, name: str) -> str:
    return f"{server.settings.inference_url}/predictions/{name}"


def send(server: Server, name: str, body: bytes, content_type: str | None = None, timeout_s: float = 60) -> Answer:
    headers = {"Content-Type": content_type} if content_type else {}
    response = requests.post(url(server, name), data=body, headers=headers, timeout=timeout_s)
    try:
        parsed = response.json()
    except ValueError:
        parsed = response.text
    return Answer(response.status_code, parsed, dict(response.headers))


def send_together(server: Server, name: str, bodies: list[bytes]) -> list[Answer]:
    """Requests at once, one thread each; every one is answered or the test fails."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: send(server, name, body), bodies))


def logged(server: Server) -> str:
    return "".join(file.read_text(errors="replace") for file in server.logs.rglob("*") if file.is_file())


def printed(*words: str | Path, **how: Any) -> str:
    """Run a command and return what it prints; its errors are the assertion's."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False, **how
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def curl(*arguments: str) -> str:
    return printed("curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "60", *arguments)


def metrics(server: Server) -> dict[str, float]:
    text = requests.get(f"{server.settings.metrics_url}/metrics", timeout=10).text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}
