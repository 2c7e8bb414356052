"""The direction of imports, as CONTRIBUTING.md states it."""

import ast
import functools
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from deploy.loader import FORMAT
from deploy.models import ROOT
from handlers import archive_files
from handlers.batching.core import Core
from tests.pages import blocks
from tests.rooms import imported, module_of

# Package -> its rooms, lowest first: a room imports what stands before it, and rooms of one line nothing of each other.
FLOORS: dict[str, Sequence[set[str]]] = {
    "handlers": [{*line.split(", ")} for line in blocks("CONTRIBUTING.md", "text")[-1].splitlines()],
    "load": (
        {"LoadError"},
        {"sandbox", "schedules"},
        {"inputs", "results"},
        {"generate"},
        {"expect", "served", "run_file"},
        {"measure", "report"},
        {"page"},
        {"arguments", "bench"},
        {"__main__"},
    ),
}
# Folder -> the top-level packages that it may import.
NEIGHBOURS: dict[str, set[str]] = {
    "handlers": {"handlers"},
    "client": {"torchserve_client"},
    "deploy": {"deploy", "handlers", "torchserve_client"},
    "load": {"load", "torchserve_client"},
}
# Package of deploy/ -> those of it that import this one, or have what it does without: it imports none of them.
ABOVE = {
    "archives": ("nodes", "gateway", "hosts.serve", "hosts.ray"),
    "nodes/run": ("archives.precision", "archives.migrate", "gateway", "nodes.container"),
    "gateway": ("nodes.container",),
    "protocol": ("gateway", "hosts"),
    "hosts": ("gateway", "nodes", "archives"),
    "hosts/frontend": ("hosts.ray", "hosts.serve"),
}
MEASURED = (("load", "bench"), ("load", "sandbox.py"))
# The names of an archive's own handlers that the hosts in Python import.
HOSTS_KNOW = {
    "handlers.errors": "BodyTooLarge InvalidInput ItemError MalformedMessage",
    "handlers.metrics": "COUNTERS",
    "handlers.pipeline.task": "samples_of",
    "handlers.protocol": "wire",
    "handlers.protocol.api_forms": "error_document",
    "handlers.protocol.bodies": "parse_api",
    "handlers.protocol.codings": "decompress inflate",
    "handlers.protocol.grpc_inference": "parse",
    "handlers.protocol.headers": "is_utf8",
    "handlers.protocol.requests": "Request",
    "handlers.protocol.rows": "BODY",
    "handlers.protocol.statuses": "INVALID_ARGUMENT UNIMPLEMENTED meaning_of",
    "handlers.protocol.wire": "BOUNDARY_CHARACTERS FORM_FIELDS GRPC_METHODS "
    "METADATA_HEADER NAMELESS ORIGINAL_PATH_HEADER PART_HEAD_BYTES SERVICE",
}
HOUSE = {"handlers", "torchserve_client", "deploy", "load", "tests", "examples"}


@functools.cache
def imports(path: Path) -> list[str]:
    return [*imported(ast.parse(path.read_text(encoding="utf-8")))]


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def room(path: Path) -> str:
    """The first part of a module's name within its package; "" of the package itself."""
    first, *_ = path.relative_to(ROOT).parts[1:]
    return "" if first == "__init__.py" else first.removesuffix(".py")


@pytest.mark.parametrize("package", list(FLOORS))
def test_rooms_import_only_from_the_floors_below(package: str) -> None:
    floor_of = {name: number for number, names in enumerate(FLOORS[package]) for name in names}
    wrong = []
    for path in modules(package):
        if here := room(path):
            names = (name.split(".") for name in imports(path) if name.startswith(f"{package}."))
            wrong += [(path, there) for _, there, *_ in names if there != here and floor_of[there] >= floor_of[here]]
    assert wrong == []


def test_hosts_know_only_these_names_of_an_archives_handlers() -> None:
    """A change of one of them, or of the core's public names, is another FORMAT."""
    assert (FORMAT, archive_files.FORMAT) == (5, 5)
    paths = [*modules("deploy/hosts/frontend"), *modules("deploy/protocol"), *modules("deploy/hosts/serve")]
    found = {name for path in paths for name in imports(path) if name.startswith("handlers.")}
    assert found == {f"{module}.{name}" for module, names in HOSTS_KNOW.items() for name in names.split()}
    methods = {"unpack", "submit", "cancel", "step", "close", "is_running"}
    assert {name for name in vars(Core) if not name.startswith("_")} == methods


@pytest.mark.parametrize("package", list(NEIGHBOURS))
def test_packages_import_only_their_neighbours(package: str) -> None:
    others = HOUSE - NEIGHBOURS[package]
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imports(path)
        # Benchmarks compare this deployment with its peers, so they and their servers reach into all of it, except its
        # tests.
        if name.partition(".")[0] in ({"tests"} if path.relative_to(ROOT).parts[:2] in MEASURED else others)
    ]
    assert not wrong


@pytest.mark.parametrize("package", list(ABOVE))
def test_packages_of_deploy_import_none_that_imports_them(package: str) -> None:
    """The test follows imports within deploy: an indirect import counts, too."""
    waiting = modules(f"deploy/{package}")
    seen, wrong = {*waiting}, []
    while waiting:
        path = waiting.pop()
        for name in imports(path):
            if any(f"{name}.".startswith(f"deploy.{above}.") for above in ABOVE[package]):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
            for part in (name, name.rpartition(".")[0]):
                there = (ROOT / part.replace(".", "/")).with_suffix(".py")
                if part.startswith("deploy.") and there.is_file() and there not in seen:
                    seen.add(there)
                    waiting.append(there)
    assert not wrong


def test_modules_import_each_other_in_no_circle() -> None:
    """An import within a function counts, too."""
    paths = {module_of(path.relative_to(ROOT).as_posix()): path for package in NEIGHBOURS for path in modules(package)}
    graph = {
        name: {each if each in paths else each.rpartition(".")[0] for each in imports(path)} - {name}
        for name, path in paths.items()
    }
    TopologicalSorter(graph).prepare()  # CycleError names one


def test_tasks_import_no_other_task_and_two_modules_torchserve() -> None:
    tasks = modules("handlers/tasks")
    assert [(path, each) for path in tasks for each in imports(path) if "handlers.tasks" in each] == []
    importers = {
        path.relative_to(ROOT / "handlers").as_posix()
        for path in modules("handlers")
        for name in imports(path)
        if name.partition(".")[0] == "ts"
    }
    assert importers == {"torchserve.py", "original_archive.py"}


def test_name_of_a_task_is_in_its_two_modules_alone() -> None:
    names = {path.stem for path in modules("handlers/tasks")} - {"__init__"}
    assert names == {path.stem for path in modules("deploy/archives/tasks")} - {"__init__"}
    # One word may mean something else, and one name is a library's as well.
    names -= {"tensors", "stock", "translation", "reranking", "tokenization"}
    found = [
        (path.name, name)
        for package in ("handlers", "deploy", "client", "torchserve_batching")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".js", ".yaml", ".lua", ".html")
        for name in re.findall(rf"\b({'|'.join(names)})\b", path.read_text(encoding="utf-8"))
        if path.stem != name and (path.name, name) != ("sentence_modules.py", "sentence_embedding")
    ]
    assert found == []


def test_every_folder_of_tests_is_collected(pytestconfig: pytest.Config) -> None:
    # pytest's own list has the name build.
    left_out = pytestconfig.getini("norecursedirs")
    folders = {part for path in (ROOT / "tests").rglob("test_*.py") for part in path.relative_to(ROOT).parts[:-1]}
    assert not [folder for folder in folders for pattern in left_out if fnmatch(folder, pattern)]
