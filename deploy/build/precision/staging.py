"""The step of a build that adds precisions and their proofs to what was exported, out of the cache where it can.

    files of an archive, with a graph for OpenVINO -> the cache, or prove.py -> the same, with proofs and an int8 graph

Imports no library of models: where the cache has it all, nothing is loaded.
"""

import tempfile
from pathlib import Path

from deploy.build.exports import Exports, link_files
from deploy.build.fingerprint import precision_fingerprint
from deploy.build.precision.inputs import TASKS, sample_files
from deploy.build.precision.request import PrecisionRequest, processor
from deploy.build.tasks import imported_quietly
from deploy.models import Model
from handlers.archive_files import GRAPH


def add(
    model: Model, request: PrecisionRequest, folder: Path, exports: Exports, key: str | None, *, is_trained: bool
) -> None:
    """Add what was asked for, and what every archive of such a task has, to its files.

    Args:
        model: the entry of the list.
        request: what was asked for, checked.
        folder: the archive's files so far.
        exports: the cache.
        key: the fingerprint of what was exported; None where nothing was.
        is_trained: whether the weights mean anything.

    Raises:
        InvalidConfig: the inputs do not do, or a precision is not near enough.
    """
    has_graph = (folder / GRAPH).is_file() and model.handler in TASKS
    if key is None or not has_graph or not (is_trained or request.precision):
        return
    samples = {f"sample/{number}/{path.name}": path for number, path in enumerate(sample_files(model))}
    own = precision_fingerprint(model, samples, key, request.identity(), processor())

    def make(empty: Path) -> None:
        prove = imported_quietly("deploy.build.precision.prove")
        prove.make(model, request, folder, empty, is_trained=is_trained)

    with tempfile.TemporaryDirectory(prefix=".precision-", dir=folder.parent) as work:
        found = Path(work) / "files"
        found.mkdir()
        exports.take(own, make, found)
        link_files(found, folder, [path.name for path in found.iterdir()])
