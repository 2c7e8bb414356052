"""Builds archives, a module for each task: the same name as of the module in handlers/tasks, which serves it.

    task: NAME        -> FACTS of NAME.py, read and not imported -> Task
    task: my_task.py  -> the file, checked                       -> Task

FACTS are values of `Task`. `stage` writes an archive's files; a task on images has `open_owner` (the networks of
torchvision), `AUTO` and `answer` (of transformers) and `measure` for the comparison with these libraries. Only the
modules and `load_task` import torch: the check whether an archive is up to date takes a moment.
"""

import ast
import importlib
import importlib.util
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from deploy.archives.task_file import check_module, find_helpers, read_staged_files
from deploy.models import ROOT, ModelEntry
from handlers.config import HandlerConfig
from handlers.errors import InvalidConfig

Mode = Literal["classic", "adaptive"]  # TorchServe forms the batches, or the worker
Samples = Literal["images", "texts", "questions", "pairs"]


@dataclass(frozen=True, slots=True)
class Task:
    """The class that serves models of a kind, and the contents of their archives."""

    path: Path  # the file of its one class; the archive has it at its root
    builder: str  # the module whose `stage(model, source, engine, folder)` writes the files that the class loads
    settings: str = ""  # the class of its settings, as "module:Class" of handlers; empty if only its class knows it
    # The settings that decide the staged files; None if staging is as cheap as copying, so that no file is cached.
    export_settings: tuple[str, ...] | None = None
    # Names or patterns of the files beside a model's configuration that belong into its archive.
    files: tuple[str, ...] = field(default=())
    # Modules beside the file of a user's task, by their paths in the archive.
    helpers: Mapping[str, Path] = field(default_factory=dict)
    # Settings that name a file; the archive has it under the setting's name, with its ending.
    named_files: tuple[str, ...] = field(default=())
    takes_hub_ids: bool = False  # whether `--weights` may name a checkpoint on the Hugging Face hub
    needs_weights: bool = True  # whether a list must name weights for it
    # The default mode. Adaptive mode serves images, encoders and translation at least as well; of items that cost next
    # to nothing, digits in ONNX with 64 clients, 0.8 times as many, since each exchange has all requests in flight.
    mode: Mode = "adaptive"
    compares: bool = True  # whether `archive` compares it with its library; or else its own `stage` does
    samples: Samples | None = None  # the inputs that compare precisions; None for a task of one precision
    graphs: int = 1  # of several none becomes int8
    int8: str = ""  # why it has no --precision int8, if not for the reasons above
    # Kinds of transformers' models that it cannot serve, by `model_type`, with the reason.
    unserved: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    # TorchServe's handler that it replaces, with the package of its networks; and the mode of the transformers example.
    replaces: tuple[str, str] = ("", "")
    mode_before: str = ""
    as_before: Mapping[str, object] = field(default_factory=dict)  # settings with which it answers as that handler

    def settings_class(self) -> Any:
        module, _, name = self.settings.partition(":")
        return getattr(importlib.import_module(f"handlers.{module}"), name)


def _read_task(path: Path) -> Task:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    (facts,) = (node.value for node in assigned if ast.unparse(node.targets[0]) == "FACTS")
    return Task(ROOT / "handlers" / "tasks" / path.name, f"{__name__}.{path.stem}", **ast.literal_eval(facts))


BUILT_IN = {path.stem: _read_task(path) for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}


def task_of(model: ModelEntry) -> Task:
    """Find the task that serves a model; InvalidConfig if `task:` is neither a built-in task nor a task's file."""
    if model.handler in BUILT_IN:
        return BUILT_IN[model.handler]
    folder = model.folder.parent
    known = f"built-in tasks are {', '.join(BUILT_IN)}"
    if not model.handler.endswith(".py"):
        raise InvalidConfig(
            f"{model.name}: task: {model.handler} is not a task; {known}; your own task is a file NAME.py"
        )
    path = folder / model.handler
    if not path.is_file():
        there = ", ".join(sorted(file.name for file in folder.glob("*.py"))) or "none"
        raise InvalidConfig(f"{model.name}: task: no file {model.handler} beside the list, which has {there}; {known}")
    try:
        check_module(path)
        files, helpers = read_staged_files(path), find_helpers(path)
    except InvalidConfig as error:
        raise InvalidConfig(f"{model.name}: task: {error}") from None
    return Task(
        path=path,
        builder="deploy.archives.custom",
        files=files,
        helpers=helpers,
        takes_hub_ids=True,
        needs_weights=False,
        mode="classic",
    )


def find_staged_files(model: ModelEntry, task: Task) -> dict[str, Path]:
    """Find the files, or those of folders, that a model's configuration names, by their paths in the archive."""
    matches = (match for pattern in task.files for match in model.folder.glob(pattern))
    files = {file for match in matches for file in (match.rglob("*") if match.is_dir() else (match,)) if file.is_file()}
    inputs = {file for file in files - {model.config_path} if "__pycache__" not in file.parts}
    found = {file.relative_to(model.folder).as_posix(): file for file in sorted(inputs)}
    named = ((setting, find_named_file(model, setting)) for setting in task.named_files)
    return found | {f"{setting}{path.suffix}": path for setting, path in named if path is not None}


def find_in_package(package: str, file: str) -> Path | None:
    """Return the path of a file or folder inside a package without importing it; None if the package is missing."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / file


def find_named_file(model: ModelEntry, setting: str) -> Path | None:
    """Find the file that a setting names: `NAME` beside the configuration, or {package, file}; None for others."""
    value = model.settings().get(setting)
    path: Path | None
    if isinstance(value, str):
        path, place = model.folder / value, f"{model.folder.name}/{value}"
    elif isinstance(value, Mapping) and value.keys() == {"package", "file"}:
        path = find_in_package(str(value["package"]), str(value["file"]))
        place = f"{value['file']} in a package {value['package']}"
    else:
        return None
    if path is None or not path.is_file():
        raise InvalidConfig(f"{model.name}: {setting}: no file {place}")
    return path


def import_quietly(name: str) -> ModuleType:
    """Import a module without the warnings of TorchServe's base class about optional packages."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    finally:
        logging.disable(logging.NOTSET)


def task_class(handler: str) -> Any:
    module = import_quietly(f"handlers.tasks.{handler}")
    classes = (each for each in vars(module).values() if isinstance(each, type))
    (found,) = (each for each in classes if each.__module__ == module.__name__)
    return found


def load_task(handler: str, folder: Path, config: HandlerConfig) -> Any:
    """Load a built-in task from an archive's files, as a worker does; InvalidConfig if they do not fit the settings."""
    from handlers.pipeline.task import default_options  # noqa: PLC0415 - `archive --help` needs no numpy
    from handlers.pipeline.values import Archive  # noqa: PLC0415

    task = task_class(handler)()
    streams = 1 if config.scheduling.streams == "auto" else config.scheduling.streams  # one stream needs no trial
    task.config = replace(config, scheduling=replace(config.scheduling, streams=streams))
    task.archive = Archive(folder)
    task.engine = task.load()
    task.archive = replace(task.archive, defaults=default_options(task))
    return task
