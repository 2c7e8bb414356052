"""Builds an old archive as it is; its own code is not run before it serves.

.mar, .tar.gz or a folder -> original/
"""

from pathlib import Path

from deploy.archives.old_archives import extract
from deploy.archives.sources import Source, WeightsUnavailable
from deploy.models import Engine, ModelEntry
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.original_archive import ORIGINAL, StockConfig

FACTS = {"settings": "original_archive:StockConfig", "mode": "classic", "compares": False}

TAKEN = ("handlers", "stock")  # modules that the worker has imported under these names before it loads the old handler


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:  # noqa: ARG001 - the handler's own
    parse(StockConfig, model.config().get("handler"))
    if origin.kind not in ("file", "folder"):
        raise WeightsUnavailable(
            f"{model.name}: no {origin.kind} weights for task: stock; name an archive, weights: OLD.mar"
        )
    (folder / ORIGINAL).mkdir()
    archive = extract(Path(origin.location), folder / ORIGINAL)
    names = sorted({name.partition("/")[0].removesuffix(".py") for name in archive.files()} & {*TAKEN})
    if names:
        raise InvalidConfig(
            f"{model.name}: the old archive has a module {names[0]}, which this project has too; rename it there"
        )
    print(f"{model.name}: `stock` runs the archive's own code in its worker: serve it only if you trust it")
