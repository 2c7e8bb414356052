"""Fingerprints: hashes of all inputs of a build, and of nothing else.

    archive: handlers/, the builders, the task's file, the model's files -> is the archive on disk up to date?
    export:  the exporting code, the settings that it reads, the weights -> is its export in the cache?

A file counts with its content and its place, so moving one is a change too. The modules of deploy/ that take part are
found by their imports; none is imported, since torch takes seconds.
"""

import ast
import functools
import hashlib
import importlib.metadata
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.archives.sources import Source
from deploy.archives.task_file import read_attributes
from deploy.archives.tasks import Task, find_staged_files
from deploy.models import ROOT, Engine, ModelEntry
from handlers.archive_files import BUILD, Build
from handlers.config import parse

# Packages whose version changes the archive of equal inputs.
TOOLS = (
    "torch",
    "torchvision",
    "transformers",
    "safetensors",
    "openvino",
    "onnxruntime",
    "ctranslate2",
    "torch-model-archiver",
)


def handler_files(root: Path = ROOT) -> dict[str, Path]:
    """Find the modules of handlers/, which every archive has, by their paths from the repository's root."""
    return _by_path(root, [*(root / "handlers").rglob("*.py")])


@functools.cache
def find_modules(root: Path, *modules: str) -> Mapping[str, Path]:
    """Find the files of dotted modules and of all that they import from deploy/ and handlers/ in `root`, by path."""
    found, left = set[Path](), [file for name in modules for file in _files_of(root, name)]
    while left:
        if (file := left.pop()) not in found:
            found.add(file)
            left += _imported(root, file)
    return _by_path(root, [*found])


@functools.cache  # most modules are those of several tasks
def _imported(root: Path, path: Path) -> frozenset[Path]:
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(file for name in names for file in _files_of(root, name))


def _files_of(root: Path, name: str) -> Iterator[Path]:
    """Yield the files in `root` that an import of a dotted name runs; the last part may be no module."""
    place = root
    for part in name.split("."):
        place /= part
        yield from filter(Path.is_file, (place / "__init__.py", place.with_suffix(".py")))
        if not place.is_dir():
            return


def _by_path(root: Path, paths: list[Path]) -> dict[str, Path]:
    return {path.relative_to(root).as_posix(): path for path in paths}


def archive_fingerprint(model: ModelEntry, task: Task, inputs: str, facts: tuple[str, ...], root: Path = ROOT) -> str:
    """Hash all inputs of an archive; `inputs` stands for its weights and options, `facts` are others of its entry."""
    staged = find_staged_files(model, task)
    if model.config_path.exists():
        staged = {model.config_path.name: model.config_path, **staged}
    files = {
        **handler_files(root),
        **find_modules(root, "deploy.archives.archive", task.builder),
        f"task/{task.path.name}": task.path,
        **{f"task/{name}": path for name, path in task.helpers.items()},
        **{f"model/{name}": path for name, path in staged.items()},
    }
    return digest(files, model.name, model.handler, inputs, facts)


def export_fingerprint(model: ModelEntry, task: Task, origin: Source, engine: Engine, root: Path = ROOT) -> str | None:
    """Hash the inputs of the files that a built-in task stages; None if staging is as cheap as copying."""
    if task.export_settings is None:
        return None
    config = parse(task.settings_class(), model.config().get("handler"))
    settings = {name: getattr(config, name) for name in task.export_settings}
    files = {
        **find_modules(root, task.builder),
        **{f"model/{name}": path for name, path in find_staged_files(model, task).items()},
    }
    return digest(files, model.handler, origin.identity, engine, settings, read_attributes(task.path))


def digest(files: Mapping[str, Path], *facts: object) -> str:
    """Hash files by their names and contents, facts, and the versions of TOOLS."""
    hashed = hashlib.sha256()
    for name, path in sorted(files.items()):
        hashed.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    tools = [f"{name} {importlib.metadata.version(name)}" for name in TOOLS]
    hashed.update(repr((facts, tools)).encode())
    return hashed.hexdigest()


def read_build(path: Path) -> Build | None:
    """Read build.json inside an archive; None if the archive or a sound build.json is missing."""
    try:
        return Build.from_json(read_packed(path, BUILD))
    except (LookupError, ValueError):
        return None


def read_packed(path: Path, name: str) -> bytes:
    """Read one file of an archive of any format; LookupError if the archive or the file is missing."""
    try:
        if path.is_dir():
            return (path / name).read_bytes()
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)
    except (OSError, zipfile.BadZipFile) as error:
        raise LookupError(name) from error
