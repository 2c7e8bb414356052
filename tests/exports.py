"""Exports that all tests of this checkout share, between modules, processes and runs.

deploy.archives.exports keeps each under the fingerprint of what it is made from, code and weights and tools, with its
files' sums: a stale or truncated one is built again. Archives are packed from them in a second and never kept.
"""

import json
import os
import zlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from deploy.archives.exports import Exports
from deploy.archives.fingerprint import export_fingerprint
from deploy.archives.sources import source
from deploy.archives.tasks import task_of
from deploy.models import ROOT, Engine, ModelEntry, model

# `make serve` and the bench keep theirs here as well.
FOLDER = ROOT / "model_store" / ".exports"


def shared() -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    return FOLDER


def staged(name: str, folder: Path) -> None:
    """Put into an empty folder what the archive of an example holds, for both engines; its files may be links."""
    taken(model(name), None, folder)


def dated(folder: Path) -> Path:
    """Date a checkpoint's files by their content: by size and time it is known, so the same one is exported once."""
    for path in folder.rglob("*"):
        if path.is_file():
            # From 2001 to 2032: ZIP has no times before 1980.
            time_s = 10**9 + zlib.crc32(path.read_bytes()) % 10**9
            os.utime(path, (time_s, time_s))
    return folder


def taken(entry: ModelEntry, weights: str | None, folder: Path, engine: Engine = "auto") -> None:
    """Put into an empty folder what the archive of a model with these weights holds, for both engines or for one."""
    origin, task = source(entry, weights), task_of(entry)

    def make(empty: Path) -> None:
        import_module(task.builder).stage(entry, origin, engine, empty)

    key = export_fingerprint(entry, task, origin, engine)
    if key is None:
        make(folder)
    else:
        Exports(shared()).take(key, make, folder)


def archived(
    task: str,
    weights: Path | str,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    engine: Engine = "auto",
    files: Mapping[str, Any] | None = None,
) -> Path:
    """Return what the archive of a model with these weights, or `random` ones, holds, made in an empty folder."""
    own, archive = folder / "own", folder / "archive"
    for place in (own, archive):
        place.mkdir()
    for name, content in {"model-config.yaml": {"handler": {**settings}}, **(files or {})}.items():
        (own / name).write_text(json.dumps(content))
    taken(ModelEntry("tiny", task, "1.0", own), str(weights), archive, engine)
    return archive
