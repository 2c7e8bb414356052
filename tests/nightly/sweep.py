"""Write docs/model-families.json: how archive.sh builds a tiny checkpoint of each family for each task.

rows of a table -> save a checkpoint, stage it as archive.sh does -> engine, padding, largest error -> a cell
cells           -> write: the file, row by row -> worse: what a new cell loses against the file's
`make docs` then writes docs/reference/model-families.md from the file.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from deploy.archives.exports import Exports
from deploy.archives.sources import source
from deploy.archives.staging import plan_comparisons, stage
from deploy.models import ROOT, ModelEntry
from handlers.errors import InvalidConfig

FILE = ROOT / "docs" / "model-families.json"
# The first words of a cell, the best first.
RESULTS = ("OpenVINO", "CTranslate2", "OpenVINO, exact", "CTranslate2, greedy", "torch", "torch, exact", "refused", "")
# Errors of fp32 below this differ by noise, and others by less than this factor.
NOISE, FACTOR = 1e-5, 10
MISSING = "not swept"


class Build(NamedTuple):
    """A cell's checkpoint: its task, what writes it to a folder or below it, and the archive's settings."""

    task: str
    save: Callable[[Path], Path | None]
    settings: Mapping[str, Any] = {}


class Table(NamedTuple):
    """A table of the file: its name there, and its cells by row."""

    name: str
    rows: Mapping[str, Sequence[Build]]

    def read(self) -> dict[str, list[str]]:
        rows: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))[self.name]["rows"]
        return rows

    def write(self, row: str, cells: Sequence[str]) -> None:
        """Put a row into the file, in the order of this table's rows."""
        tables = json.loads(FILE.read_text(encoding="utf-8"))
        found = {**tables[self.name]["rows"], row: [*cells]}
        rows = {name: found.get(name, [MISSING] * len(self.rows[name])) for name in self.rows}
        tables[self.name]["rows"] = rows
        FILE.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")


def cell(build: Build) -> str:
    """Build one; say which engine it has, whether padding is left out or beams are, and the largest error."""
    with tempfile.TemporaryDirectory() as work:
        weights, own, staged = (Path(work) / name for name in ("weights", "model", "stage"))
        for folder in (weights, own, staged):
            folder.mkdir()
        (own / "model-config.yaml").write_text(yaml.safe_dump({"handler": dict(build.settings)}))
        if build.task.startswith("image_"):
            (own / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b", "2": "c"}))
        saved = build.save(weights) or weights
        is_layout = (saved / "modules.json").is_file()
        model = ModelEntry("tiny", build.task, "1", own)
        origin, exports = source(model, str(saved)), Exports(Path(work) / "exports")
        try:
            engine = stage(model, origin, "auto", plan_comparisons(), exports=exports, folder=staged)
        except InvalidConfig as error:
            assert "\n" not in str(error)
            return "refused"
        said, label = (
            json.loads(path.read_text()) if (path := staged / name).is_file() else {}
            for name in ("fidelity.json", "label.json")
        )
    if build.task == "translation":
        return ("CTranslate2, greedy" if "beams" in label else "CTranslate2") if label else "torch"
    # Folders of sentence-transformers are compared with that library.
    assert is_layout == ("of sentence-transformers" in said["said"])
    exact = ", exact" if said["settings"] else ""
    return f"{'torch' if engine == 'torch' else 'OpenVINO'}{exact}, {said['largest_error']:.0e}"


def is_worse(new: str, old: str) -> bool:
    """Whether a cell has a worse result than before, or an error that is larger by an order of magnitude."""
    (rank, error), (old_rank, old_error) = _parsed(new), _parsed(old)
    return rank > old_rank or error > max(NOISE, FACTOR * old_error)


def _parsed(said: str) -> tuple[int, float]:
    result, _, error = said.rpartition(", ")
    if said in RESULTS:
        return RESULTS.index(said), 0.0
    return RESULTS.index(result), float(error)
