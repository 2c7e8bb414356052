"""Sweep: archive.sh builds a tiny checkpoint of every family as docs/model-families.json reports, or better.

rows of a table -> save a checkpoint, stage it as archive.sh does -> engine, padding, largest error -> a cell
    .venv/bin/python -m tests.nightly.test_families             writes all tables of the file, row by row
    .venv/bin/python -m tests.nightly.test_families --missing   continues with the rows that the file lacks
    .venv/bin/python -m tests.nightly.test_families bert gpt2   writes these rows

A further table is an entry of TABLES, and a further row one of tests.nightly.families. `make docs` then writes
docs/reference/model-families.md.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from deploy.archives.exports import Exports
from deploy.archives.sources import source
from deploy.archives.staging import plan_comparisons, stage
from deploy.models import ROOT, ModelEntry
from handlers.errors import InvalidConfig
from tests import tiny_seq2seq
from tests.nightly import image_families
from tests.nightly.families import FAMILIES, save
from tests.nightly.test_sentence_layouts import LAYOUTS, layout

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
        weights, own, staged = (Path(tempfile.mkdtemp(dir=work)) for _ in range(3))
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
        files = (staged / "fidelity.json", staged / "label.json")
        said, label = (json.loads(path.read_text()) if path.is_file() else {} for path in files)
    if build.task == "translation":
        return ("CTranslate2, greedy" if "beams" in label else "CTranslate2") if label else "torch"
    # Folders of sentence-transformers are compared with that library.
    assert not is_layout or "of sentence-transformers" in said["said"]
    exact = ", exact" if said["settings"] else ""
    return f"{'torch' if engine == 'torch' else 'OpenVINO'}{exact}, {said['largest_error']:.0e}"


def is_worse(new: str, old: str) -> bool:
    """Whether a cell has a worse result than before, or an error that is larger by an order of magnitude."""

    def parsed(said: str) -> tuple[int, float]:
        result, _, error = said.rpartition(", ")
        return (RESULTS.index(said), 0.0) if said in RESULTS else (RESULTS.index(result), float(error))

    (rank, error), (old_rank, old_error) = parsed(new), parsed(old)
    return rank > old_rank or error > max(NOISE, FACTOR * old_error)


# A column's task, and the class of transformers that has its head.
TASKS = {"text_classification": "AutoModelForSequenceClassification", "sentence_embedding": "AutoModel"}
# Families with languages, and what the archive says of them.
LANGUAGES = {"src_lang": "eng", "tgt_lang": "fra"}
TRANSLATORS: dict[str, tuple[Callable[[Path], Path], Mapping[str, Any]]] = {
    "marian": (tiny_seq2seq.marian, {}),
    "marian:languages": (partial(tiny_seq2seq.marian, targets=("fra", "deu")), {"tgt_lang": "fra"}),
    "m2m_100": (tiny_seq2seq.m2m100, {"src_lang": "en", "tgt_lang": "fr"}),
    "nllb": (tiny_seq2seq.nllb, {"src_lang": "eng_Latn", "tgt_lang": "fra_Latn"}),
    "seamless_m4t": (tiny_seq2seq.seamless, LANGUAGES),
    "seamless_m4t_v2": (partial(tiny_seq2seq.seamless, is_v2=True), LANGUAGES),
    **{kind.lower(): (partial(tiny_seq2seq.t5, kind=kind), {}) for kind in ("T5", "MT5", "UMT5")},
    **{
        kind.lower(): (partial(tiny_seq2seq.bart, kind=kind), {})
        for kind in ("Bart", "MBart", "Pegasus", "Mvp", "PLBart", "Blenderbot", "PegasusX", "LED")
    },
}
TABLES = [
    Table(
        "encoders",
        {name: [Build(task, partial(save, name, head)) for task, head in TASKS.items()] for name in FAMILIES},
    ),
    Table(
        "sentence-transformers", {name: [Build("sentence_embedding", partial(layout, name=name))] for name in LAYOUTS}
    ),
    Table(
        "translation", {name: [Build("translation", make, settings)] for name, (make, settings) in TRANSLATORS.items()}
    ),
    Table(
        "images",
        {
            name: [Build("image_classification", partial(image_families.save, name), image_families.settings(name))]
            for name in image_families.NAMES
        },
    ),
]


@pytest.mark.parametrize(
    ("table", "row", "column"),
    [
        pytest.param(table, row, column, id=f"{build.task}-{row}")
        for table in TABLES
        for row, builds in table.rows.items()
        for column, build in enumerate(builds)
    ],
)
def test_family_is_served_as_the_file_reports_or_better(table: Table, row: str, column: int) -> None:
    said = table.read()[row][column]
    assert said != MISSING
    new = cell(table.rows[row][column])
    assert not is_worse(new, said), f"{new}; the file has {said}"


def main(names: list[str]) -> None:
    for table in TABLES:
        found = table.read()
        for row, builds in table.rows.items():
            is_missing = MISSING in found.get(row, [MISSING])
            if not names or row in names or (names == ["--missing"] and is_missing):
                table.write(row, [cell(build) for build in builds])
                print(row, *table.read()[row], sep=" | ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
