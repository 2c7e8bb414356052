"""The step of a build that stages a model's files, checks them and adds precisions, from the cache if it can.

task, weights -> the cache, or the builder -> files of an archive -> the cache, or fidelity.py and prove.py
                                                                  -> settings, proofs and an int8 graph beside them

Imports no library of models: if the cache has all files, no model is loaded.
"""

import shutil
import tempfile
from pathlib import Path
from typing import cast

from deploy.archives.exports import Exports, link_files
from deploy.archives.fingerprint import export_fingerprint, precision_fingerprint
from deploy.archives.precision.inputs import TASKS, find_sample_files
from deploy.archives.precision.request import PrecisionRequest, read_processor
from deploy.archives.sources import Source, WeightsUnavailable
from deploy.archives.tasks import BUILT_IN, import_quietly, task_of
from deploy.models import STOCK, TENSORS, Engine, ModelEntry
from deploy.progress import step
from handlers.archive_files import GRAPH
from handlers.errors import InvalidConfig, Unfaithful, reason

LIBRARIES = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}


def stage(
    model: ModelEntry, origin: Source, engine: Engine, request: PrecisionRequest, *, exports: Exports, folder: Path
) -> Engine:
    """Write a model's files and precisions into an empty folder; return the engine that the archive has.

    With `auto`, the archive has only another engine if OpenVINO cannot run the model exactly.

    Raises:
        WeightsUnavailable: see the builder.
        InvalidConfig: the configuration is wrong, no engine runs the model exactly, or a precision is not near enough.
    """
    if engine == "onnxruntime" and model.handler != TENSORS:
        raise InvalidConfig(f"{model.name}: --engine onnxruntime runs ONNX files; they need handler: {TENSORS}")
    try:
        _stage(model, origin, engine, request, exports=exports, folder=folder)
    except Unfaithful as error:
        if engine != "auto" or request.precision is not None:
            way_out = "" if engine == error.instead else f"; --engine {error.instead} may run it, without int8"
            raise InvalidConfig(f"{model.name}: {error}{way_out}") from error
        shutil.rmtree(folder)
        folder.mkdir()
        try:
            instead = cast(Engine, error.instead)
            _stage(model, origin, instead, request, exports=exports, folder=folder)
        except InvalidConfig as other:
            raise InvalidConfig(f"{model.name}: {error}; and {other}") from other
        print(f"{model.name}: {LIBRARIES[instead]} runs it: {error}")
        return instead
    return engine


def _stage(
    model: ModelEntry, origin: Source, engine: Engine, request: PrecisionRequest, *, exports: Exports, folder: Path
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

    def check(empty: Path) -> None:
        with step(f"{model.name}: comparing with the original model"):
            import_quietly("deploy.archives.precision.fidelity").check(model, origin, engine, folder, empty)
        has_graph = (folder / GRAPH).is_file() and model.handler in TASKS
        if has_graph and (origin.is_trained or request.precision):
            with step(f"{model.name}: comparing precisions"):
                prove = import_quietly("deploy.archives.precision.prove")
                prove.make(model, request, folder, empty, is_trained=origin.is_trained)

    if model.handler not in BUILT_IN or model.handler in (STOCK, TENSORS, "translation"):
        # Its builder compares rows or texts; an old archive's code does not run here.
        return
    with tempfile.TemporaryDirectory(prefix=".precision-", dir=folder.parent) as work:
        found = Path(work) / "files"
        found.mkdir()
        if key is None:
            check(found)
        else:
            samples = {f"sample/{number}/{path.name}": path for number, path in enumerate(find_sample_files(model))}
            own = precision_fingerprint(model, samples, key, request.identity(), read_processor())
            exports.take(own, check, found)
        link_files(found, folder, [path.name for path in found.iterdir()])
