"""Fingerprints: hashes of everything that decides what is built, and of nothing else.

    archive: handlers/, the builders, the task's file, the model's files -> is the archive on disk still right?
    export:  the exporting code, the settings that it reads, the weights -> is there a cached export of it?

Files count with their content and their place, so that moving one is a change too. Which modules of deploy/ take part
is read from their imports; none is imported, since torch takes seconds.
"""

import functools
import hashlib
import importlib.metadata
import tarfile
import zipfile
from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path

from deploy.build.sources import Source
from deploy.build.task_file import attributes
from deploy.build.tasks import Task, find_staged_files
from deploy.models import ROOT, Engine, ModelEntry
from handlers.archive_files import BUILD, Build
from handlers.config import parse

# Another version of one of these packages makes another archive of the same inputs.
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
    """Find what every archive has under handlers/: Python modules, by their paths from the repository's root."""
    return _named(root, [*(root / "handlers").rglob("*.py")])


@functools.cache
def imported(root: Path, *modules: str) -> Mapping[str, Path]:
    """Find the files of deploy/ and handlers/ that modules consist of, with everything that they import from there.

    Args:
        root: the folder of both packages.
        modules: names of the first ones, dotted.

    Returns:
        The files by their paths from the root.
    """
    finder = ModuleFinder([str(root)])
    for name in modules:
        finder.import_hook(name)
    files = [vars(module)["__file__"] for module in finder.modules.values()]
    return _named(root, [Path(file) for file in files if file])


def _named(root: Path, paths: list[Path]) -> dict[str, Path]:
    return {path.relative_to(root).as_posix(): path for path in paths}


def archive_fingerprint(
    model: ModelEntry, task: Task, origin: Source, packing: tuple[str, ...], root: Path = ROOT
) -> str:
    """Hash everything that an archive is made from.

    Args:
        model: the entry of the list.
        task: the one that serves it.
        origin: where its weights come from.
        packing: what else was asked for: version, engine, format.
        root: the folder of deploy/ and handlers/.
    """
    files = {
        **handler_files(root),
        **imported(root, "deploy.build.archive", task.builder),
        f"task/{task.path.name}": task.path,
        **{f"model/{name}": path for name, path in _own(model, task).items()},
    }
    return _digest(files, model.name, model.handler, origin.identity, packing)


def export_fingerprint(model: ModelEntry, task: Task, origin: Source, engine: Engine, root: Path = ROOT) -> str | None:
    """Hash everything that decides what a built-in task stages; None where staging is as cheap as copying.

    The task's own code is not among it, except what its class states as attributes, such as the head of its model: an
    edited handler finds its graph in the cache.
    """
    if task.export_settings is None:
        return None
    config = parse(task.settings_class(), model.config().get("handler"))
    settings = {name: getattr(config, name) for name in task.export_settings}
    files = {
        **imported(root, task.builder),
        **{f"model/{name}": path for name, path in find_staged_files(model, task).items()},
    }
    return _digest(files, model.handler, origin.identity, engine, settings, attributes(task.path))


# What decodes the inputs of tasks whose precisions are proven: with other code, they are other inputs.
DECODING = ("handlers.vision.images", "handlers.text.handler", "handlers.text.answer_spans")


def precision_fingerprint(
    model: ModelEntry, samples: Mapping[str, Path], export: str, *facts: str, root: Path = ROOT
) -> str:
    """Hash everything that decides the precisions of an archive, and what is found of them.

    Args:
        model: the entry of the list.
        samples: files of the examples that answers are compared on, by any names.
        export: the fingerprint of the graph in fp32.
        facts: what was asked for, with the identity of the inputs; what the machine computes in, since a proof holds
            for that.
        root: the folder of deploy/ and handlers/.
    """
    settings = {name: value for name, value in (model.config().get("handler") or {}).items() if name != "scheduling"}
    programs = (f"deploy.build.precision.{name}" for name in ("fidelity", "image_fidelity", "prove", "quantise"))
    files = {**imported(root, *programs, *DECODING), **samples}
    return _digest(files, export, facts, settings)


def _own(model: ModelEntry, task: Task) -> dict[str, Path]:
    config = {model.config_path.name: model.config_path} if model.config_path.exists() else {}
    return {**config, **find_staged_files(model, task)}


def _digest(files: Mapping[str, Path], *facts: object) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    tools = [f"{name} {importlib.metadata.version(name)}" for name in TOOLS]
    digest.update(repr((facts, tools)).encode())
    return digest.hexdigest()


def read_build(path: Path) -> Build | None:
    """Read build.json inside an archive; None where there is no archive of ours, or its build.json is damaged."""
    try:
        return Build.from_json(read_packed(path, BUILD))
    except (LookupError, ValueError):
        return None


def read_packed(path: Path, name: str) -> bytes:
    """Read one file of an archive of any format.

    Raises:
        LookupError: there is no such archive, or no such file in it.
    """
    try:
        if path.is_dir():
            return (path / name).read_bytes()
        if path.suffix == ".mar":
            with zipfile.ZipFile(path) as archive:
                return archive.read(name)
        with tarfile.open(path) as archive:
            member = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/{name}")
            return member.read() if member else b""
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise LookupError(name) from error
