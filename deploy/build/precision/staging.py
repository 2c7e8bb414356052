"""The step of a build that stages what a task serves, checks it and adds precisions, out of the cache where it can.

task, weights -> the cache, or the builder -> files of an archive -> the cache, or fidelity.py and prove.py
                                                                  -> the same, with settings, proofs, an int8 graph

Imports no library of models: where the cache has it all, nothing is loaded.
"""

import shutil
import tempfile
from pathlib import Path
from typing import cast

from deploy.build.exports import Exports, link_files
from deploy.build.fingerprint import export_fingerprint, precision_fingerprint
from deploy.build.precision.inputs import TASKS, sample_files
from deploy.build.precision.request import PrecisionRequest, processor
from deploy.build.sources import Source
from deploy.build.tasks import BUILT_IN, import_quietly, task_of
from deploy.models import STOCK, TENSORS, Engine, ModelEntry
from deploy.progress import step
from handlers.archive_files import GRAPH
from handlers.errors import InvalidConfig, Unfaithful

LIBRARIES = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}


def stage(
    model: ModelEntry, origin: Source, engine: Engine, request: PrecisionRequest, *, exports: Exports, folder: Path
) -> Engine:
    """Write what the task serves, and what was asked for of precisions.

    Args:
        model: the entry of the list.
        origin: where its weights come from.
        engine: what the archive is to carry a model for; of `auto`, another than OpenVINO alone where that fails.
        request: what was asked for of precisions, checked.
        exports: the cache.
        folder: an empty one.

    Returns:
        The engine that the archive has.

    Raises:
        WeightsUnavailable: see the builder.
        InvalidConfig: the configuration is wrong, no engine runs the model as it is, or a precision is not near enough.
    """
    if engine == "onnxruntime" and model.handler != TENSORS:
        raise InvalidConfig(f"{model.name}: --engine onnxruntime runs ONNX files, of handler: {TENSORS}")
    try:
        _stage(model, origin, engine, request, exports=exports, folder=folder)
    except Unfaithful as error:
        if engine != "auto" or request.precision is not None:
            way_out = "" if engine == error.instead else f"; --engine {error.instead}, which has no int8, may do"
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

    def make(empty: Path) -> None:
        with step(f"{model.name}: converting the model"):
            import_quietly(task.builder).stage(model, origin, engine, empty)

    key = export_fingerprint(model, task, origin, engine)
    if key is None:
        make(folder)
    else:
        exports.take(key, make, folder)

    def check(empty: Path) -> None:
        with step(f"{model.name}: comparing with the original model"):
            import_quietly("deploy.build.precision.fidelity").check(model, origin, engine, folder, empty)
        has_graph = (folder / GRAPH).is_file() and model.handler in TASKS
        if has_graph and (origin.is_trained or request.precision):
            with step(f"{model.name}: comparing precisions"):
                prove = import_quietly("deploy.build.precision.prove")
                prove.make(model, request, folder, empty, is_trained=origin.is_trained)

    if model.handler not in BUILT_IN or model.handler in (STOCK, TENSORS, "translation"):
        # The builder runs rows or texts itself; an old archive's code is not run here.
        return
    with tempfile.TemporaryDirectory(prefix=".precision-", dir=folder.parent) as work:
        found = Path(work) / "files"
        found.mkdir()
        if key is None:
            check(found)
        else:
            samples = {f"sample/{number}/{path.name}": path for number, path in enumerate(sample_files(model))}
            own = precision_fingerprint(model, samples, key, request.identity(), processor())
            exports.take(own, check, found)
        link_files(found, folder, [path.name for path in found.iterdir()])
