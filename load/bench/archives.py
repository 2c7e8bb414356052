"""Prepares the archives that are compared: ours, and TorchServe's own image_classifier on the same weights.

ours (found, or built) -> unpacked -> stock, both in one model store
"""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.archive import Archive, Recipe, run_archiver
from deploy.models import model
from deploy.sources import WeightsUnavailable
from handlers.scheduling.policy import CONTINUOUS
from load.bench.progress import progress

OURS, STOCK = "resnet-152", "stock-resnet-152"
MEMBERS = ("model.pt", "model.xml", "model.bin", "index_to_name.json", "model-config.yaml")


@dataclass(frozen=True, slots=True)
class Archives:
    """The archives on disk.

    Attributes:
        model_store: folder that holds OURS.mar and STOCK.mar.
        unpacked: folder of the files that ours serves.
        is_trained: whether the weights mean anything.
    """

    model_store: Path
    unpacked: Path
    is_trained: bool

    @classmethod
    def prepare(cls, work: Path) -> "Archives":
        """Find or build both.

        Args:
            work: an empty folder, into which everything is written.

        Raises:
            ArchiverFailed: an archive could not be built.
        """
        built = ours(work / "built")
        prepared = cls(work / "model_store", work / "unpacked", not built.version.endswith("-untrained"))
        prepared.model_store.mkdir()
        (prepared.model_store / f"{OURS}.mar").symlink_to(built.path)
        with zipfile.ZipFile(built.path) as archive:
            for member in MEMBERS:
                archive.extract(member, prepared.unpacked)
        _build_stock(prepared.unpacked, prepared.model_store, work)
        return prepared


def ours(export_path: Path) -> Archive:
    """Find ResNet-152 in the model store, or build it where it is missing, stale or made of a user's weights."""
    entry = model(OURS)
    found = Recipe(entry).find() or Recipe(entry, "random").find()
    if found is not None:
        return found
    try:
        return Recipe(entry, export_path=export_path).build()
    except WeightsUnavailable as error:
        progress(f"{error}: goes on with random weights, which take as long to multiply")
        return Recipe(entry, "random", export_path=export_path).build()


def write_mode(archive: Path, mode: str) -> None:
    """Have an archive that is a folder run in a mode: `classic`, or `adaptive`, which then has no target."""
    path = archive / "model-config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    handler = config.get("handler") or {}
    scheduling = {**(handler.get("scheduling") or {}), "mode": mode}
    for name in (CONTINUOUS, "minWorkers", "maxWorkers"):
        config.pop(name, None)
    if mode == "adaptive":
        config |= {CONTINUOUS: True, "minWorkers": 1, "maxWorkers": 1}
        scheduling |= {"max_latency_ms": None}
    # It may be a link to the file of another copy.
    path.unlink()
    path.write_text(json.dumps({**config, "handler": {**handler, "scheduling": scheduling}}), encoding="utf-8")


def _build_stock(unpacked: Path, model_store: Path, work: Path) -> None:
    """Build it by TorchServe's documentation: a state dict, a file with the model's class, the names of the classes."""
    temporary = work / "archiver"
    temporary.mkdir()
    arguments = {
        "--model-name": STOCK,
        "--version": "1.0",
        "--model-file": str(Path(__file__).with_name("stock_model.py")),
        "--serialized-file": str(unpacked / "model.pt"),
        "--extra-files": str(unpacked / "index_to_name.json"),
        "--handler": "image_classifier",
        "--archive-format": "zip-store",
        "--export-path": str(model_store),
    }
    run_archiver(STOCK, arguments, temporary)
