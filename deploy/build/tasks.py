"""The table of the built-in tasks, and the way from a list's `handler:` to the task that serves a model.

    handler: image_classification  -> the table          -> Task
    handler: my_task.py            -> the file, checked  -> Task

Nothing here imports torch but `loaded`: whether an archive is up to date is answered at once.
"""

import importlib
import importlib.util
import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from deploy.build.task_file import check_name, staged_files
from deploy.models import ROOT, STOCK, TENSORS, ModelEntry
from handlers.errors import InvalidConfig

# Who forms the batches: TorchServe, or the worker.
Mode = Literal["classic", "adaptive"]


@dataclass(frozen=True, slots=True)
class Task:
    """A task says how a model of its kind is served, and what its archive is made of.

    Attributes:
        path: the file that holds its one class; the archive has it at its root, under its own name.
        builder: the module of deploy/ whose `stage(model, source, engine, folder)` writes what the class serves. It is
            imported when something is built.
        settings: the class of its settings as "module:Class", or nothing where only the task's class knows it.
        export_settings: names of the settings that decide what the builder stages; None where staging is as cheap as
            copying, so that nothing is cached.
        files: names or patterns of the files beside a model's configuration that go into its archive.
        named_files: settings that name a file, which goes into the archive under the setting's name, with its ending.
        takes_hub_ids: whether `--weights` may name a checkpoint on the Hugging Face hub.
        needs_weights: whether a list has to name weights for it.
        mode: of an archive whose configuration leaves it open. Adaptive mode was measured to serve images, encoders and
            translation at least as well; of items that cost next to nothing, digits in ONNX with 64 clients, it
            serves 0.8 times as many, for TorchServe sends it all that is in flight with every exchange.
    """

    path: Path
    builder: str
    settings: str = ""
    export_settings: tuple[str, ...] | None = None
    files: tuple[str, ...] = field(default=())
    named_files: tuple[str, ...] = field(default=())
    takes_hub_ids: bool = False
    needs_weights: bool = True
    mode: Mode = "adaptive"

    def settings_class(self) -> Any:
        """Import the class of its settings."""
        module, _, name = self.settings.partition(":")
        return getattr(importlib.import_module(module), name)


def _file(name: str) -> Path:
    return ROOT / "handlers" / "tasks" / f"{name}.py"


def _encoder(name: str, settings: str, files: tuple[str, ...] = ()) -> Task:
    """Every task on a transformers encoder is built alike."""
    return Task(
        path=_file(name),
        files=files,
        builder="deploy.build.stagers.text",
        settings=f"handlers.text.config:{settings}",
        export_settings=("trust_remote_code",),
        takes_hub_ids=True,
    )


BUILT_IN = {
    "image_classification": Task(
        path=_file("image_classification"),
        builder="deploy.build.stagers.vision",
        settings="handlers.vision.config:ImageClassificationConfig",
        export_settings=("arch", "resize_size", "crop_size", "interpolation", "mean", "std", "transform_input"),
        files=("index_to_name.json",),
        takes_hub_ids=True,
    ),
    "object_detection": Task(
        path=_file("object_detection"),
        builder="deploy.build.stagers.detection",
        settings="handlers.vision.config:ObjectDetectionConfig",
        export_settings=("arch",),
        files=("index_to_name.json",),
        takes_hub_ids=True,
    ),
    "image_segmentation": Task(
        path=_file("image_segmentation"),
        builder="deploy.build.stagers.segmentation",
        settings="handlers.vision.config:ImageSegmentationConfig",
        export_settings=("arch", "resize_size", "mean", "std"),
        files=("index_to_name.json",),
        takes_hub_ids=True,
    ),
    "image_text_embedding": Task(
        path=_file("image_text_embedding"),
        builder="deploy.build.stagers.image_text",
        settings="handlers.image_text.config:ImageTextEmbeddingConfig",
        export_settings=(),
        takes_hub_ids=True,
    ),
    "text_classification": _encoder("text_classification", "TextClassificationConfig"),
    "token_classification": _encoder("token_classification", "TokenClassificationConfig"),
    "question_answering": _encoder("question_answering", "QuestionAnsweringConfig"),
    "sentence_embedding": _encoder("sentence_embedding", "SentenceEmbeddingConfig"),
    "reranking": _encoder("reranking", "RerankingConfig"),
    "tokenization": Task(
        path=_file("tokenization"),
        builder="deploy.build.stagers.tokenization",
        settings="handlers.text.config:TokenizationConfig",
        takes_hub_ids=True,
        mode="classic",
    ),
    "translation": Task(
        path=_file("translation"),
        builder="deploy.build.stagers.translation",
        settings="handlers.text.config:TranslationConfig",
        named_files=("detector",),
        export_settings=("trust_remote_code", "precision", "src_lang", "tgt_lang"),
        files=("samples.txt",),
        takes_hub_ids=True,
    ),
    "language_id": Task(
        path=_file("language_id"),
        builder="deploy.build.stagers.language_id",
        settings="handlers.text.config:LanguageIdConfig",
        mode="classic",
    ),
    TENSORS: Task(
        path=_file("tensors"),
        builder="deploy.build.stagers.tensors",
        settings="handlers.tensor_models.config:TensorsConfig",
        # What the file is held against: it is proven to batch.
        export_settings=("inputs", "outputs", "constants", "max_batch_items", "warm_up"),
        mode="classic",
    ),
    STOCK: Task(
        path=_file(STOCK),
        builder="deploy.build.stagers.stock",
        settings="handlers.config:HandlerConfig",
        mode="classic",
    ),
}


def task_of(model: ModelEntry) -> Task:
    """Find the task that serves a model.

    Raises:
        InvalidConfig: its `handler:` is neither a built-in task nor a fitting file; one line says what there is.
    """
    if model.handler in BUILT_IN:
        return BUILT_IN[model.handler]
    folder = model.folder.parent
    known = f"built in are {', '.join(BUILT_IN)}"
    if not model.handler.endswith(".py"):
        raise InvalidConfig(f"{model.name}: handler: {model.handler} is no task; {known}; a task of yours is NAME.py")
    path = folder / model.handler
    if not path.is_file():
        there = ", ".join(sorted(file.name for file in folder.glob("*.py"))) or "none"
        raise InvalidConfig(
            f"{model.name}: handler: no file {model.handler} beside the list; there is {there}; {known}"
        )
    try:
        check_name(path)
        files = staged_files(path)
    except InvalidConfig as error:
        raise InvalidConfig(f"{model.name}: handler: {error}") from None
    return Task(
        path=path,
        builder="deploy.build.stagers.custom",
        files=files,
        takes_hub_ids=True,
        needs_weights=False,
        mode="classic",
    )


def find_staged_files(model: ModelEntry, task: Task) -> dict[str, Path]:
    """Find the files beside a model's configuration, or named by it, that its task wants in the archive.

    A name or pattern that matches a folder stands for all files in it. The configuration itself is never among them.

    Returns:
        The files by their paths in the archive.

    Raises:
        InvalidConfig: a file that a setting names is missing.
    """
    matches = (match for pattern in task.files for match in model.folder.glob(pattern))
    files = {file for match in matches for file in (match.rglob("*") if match.is_dir() else (match,)) if file.is_file()}
    found = {file.relative_to(model.folder).as_posix(): file for file in sorted(files - {model.config_path})}
    named = ((setting, find_named_file(model, setting)) for setting in task.named_files)
    return found | {f"{setting}{path.suffix}": path for setting, path in named if path is not None}


def find_in_package(package: str, file: str) -> Path | None:
    """Give the place of a file or folder inside a package, which is not imported; None where there is no package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / file


def find_named_file(model: ModelEntry, setting: str) -> Path | None:
    """Find the file that a setting under `handler:` names: `NAME` beside the configuration, or {package, file}.

    Returns:
        The file; None where the setting is left out, or is none of both, which whoever parses the settings says.

    Raises:
        InvalidConfig: there is no such package or file.
    """
    value: Any = (model.config().get("handler") or {}).get(setting)
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
    """Import a module that brings TorchServe's base class, which warns of optional packages that nobody asked for."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    finally:
        logging.disable(logging.NOTSET)


def task_class(handler: str) -> Any:
    """Find the class of a built-in task by the task's name."""
    module = import_quietly(f"handlers.tasks.{handler}")
    classes = (each for each in vars(module).values() if isinstance(each, type))
    (found,) = (each for each in classes if each.__module__ == module.__name__)
    return found


def load_task(handler: str, folder: Path, config: Any) -> Any:
    """Load a built-in task.

    Args:
        handler: the task's name.
        folder: an archive's files, or those of them that the task loads.
        config: the archive's settings.

    Raises:
        InvalidConfig: the files do not fit the settings.
    """
    # What only asks whether an archive is up to date does not wait for torch.
    import torch  # noqa: PLC0415

    task = task_class(handler)()
    # One stream is as good as another, and needs no trial.
    streams = 1 if config.scheduling.streams == "auto" else config.scheduling.streams
    task.config = replace(config, scheduling=replace(config.scheduling, streams=streams))
    task.model_dir, task.device, task.fingerprint = folder, torch.device("cpu"), None
    task.longest_run_s = math.inf
    task.engine = task.load()
    return task
