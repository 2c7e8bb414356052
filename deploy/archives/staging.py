"""The step of a build that stages a model's files, from the cache if it can, and compares them with the model.

task, weights -> the cache, or the builder -> files of an archive -> Comparisons -> settings and proofs beside them
"""

import shutil
import sys
from pathlib import Path
from typing import Protocol, cast

from deploy.archives.exports import Exports
from deploy.archives.fingerprint import export_fingerprint
from deploy.archives.sources import Source, WeightsUnavailable
from deploy.archives.task_file import is_hidden
from deploy.archives.tasks import BUILT_IN, import_quietly, task_of
from deploy.models import TENSORS, Engine, ModelEntry
from deploy.progress import step
from deploy.rooms import open_room
from handlers.archive_files import BUILD, CONFIG
from handlers.errors import InvalidConfig, Unfaithful, reason

LIBRARIES = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}


class Comparisons(Protocol):
    """The comparisons of a build with its model, and its further precisions."""

    @property
    def precision(self) -> str | None:
        """The precision that an archive has besides fp32."""

    def check(self, model: ModelEntry, engine: Engine) -> None:
        """Raise InvalidConfig if the options do not fit the model."""

    def identity(self) -> str:
        """Return a text that changes with the options and with any input."""

    def make(
        self, model: ModelEntry, origin: Source, engine: Engine, folder: Path, *, exports: Exports, key: str | None
    ) -> None:
        """Compare the files in `folder` and write the results beside them; `key` is their fingerprint."""


def plan_comparisons() -> Comparisons | None:
    room = open_room("precision")
    return room.PrecisionRequest() if room else None


def stage(
    model: ModelEntry, origin: Source, engine: Engine, plan: Comparisons | None, *, exports: Exports, folder: Path
) -> Engine:
    """Write a model's files and precisions into an empty folder; return the engine that the archive has."""
    if engine == "onnxruntime" and model.handler != TENSORS:
        raise InvalidConfig(f"{model.name}: --engine onnxruntime runs ONNX files; they need task: {TENSORS}")
    try:
        _stage(model, origin, engine, plan, exports=exports, folder=folder)
    except Unfaithful as error:
        if engine != "auto" or (plan is not None and plan.precision):
            way_out = "" if engine == error.instead else f"; --engine {error.instead} may run it, without int8"
            raise InvalidConfig(f"{model.name}: {error}{way_out}") from error
        shutil.rmtree(folder)
        folder.mkdir()
        try:
            instead = cast(Engine, error.instead)
            _stage(model, origin, instead, plan, exports=exports, folder=folder)
        except InvalidConfig as other:
            raise InvalidConfig(f"{model.name}: {error}; and {other}") from other
        print(f"{model.name}: {LIBRARIES[instead]} runs it: {error}")
        return instead
    return engine


def _stage(
    model: ModelEntry, origin: Source, engine: Engine, plan: Comparisons | None, *, exports: Exports, folder: Path
) -> None:
    task = task_of(model)

    def convert(empty: Path) -> None:
        builder = import_quietly(task.builder)
        try:
            with step(f"{model.name}: converting the model"):
                builder.stage(model, origin, engine, empty)
        except (InvalidConfig, WeightsUnavailable, OSError):
            raise
        except Exception as error:
            raise InvalidConfig(
                f"{model.name}: {origin.location or origin.kind}: the model cannot be loaded: {reason(error)}; save it "
                "again, or use --debug for the traceback"
            ) from error

    key = export_fingerprint(model, task, origin, engine)
    if key is None:
        convert(folder)
    else:
        exports.take(key, convert, folder)

    if model.handler not in BUILT_IN:
        import_quietly("deploy.archives.custom").rehearse(model, task, folder)
    elif plan is not None and task.compares:
        plan.make(model, origin, engine, folder, exports=exports, key=key)


def check_root(entry: ModelEntry, stage: Path, handler: str) -> None:
    """Raise InvalidConfig if a staged file would hide a file of every archive, or a module that the worker needs."""
    ours = {"handlers", "MAR-INF", BUILD, CONFIG, handler}
    for path in sorted(stage.iterdir()):
        is_shadow = path.suffix in ("", ".py") and path.stem in sys.stdlib_module_names
        if path.name in ours or is_shadow:
            raise InvalidConfig(
                f"{entry.name}: {path.name} cannot be staged: the archive or the worker has its own; rename it"
            )


def find_packed_files(stage: Path) -> dict[str, Path]:
    """Find the staged files that torch-model-archiver packs, by their paths in the archive."""
    files = {path.relative_to(stage): path for path in stage.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path
        for name, path in files.items()
        if not any(is_hidden(part) or part == "__MACOSX" for part in name.parts[:-1])
    }
