"""Sweep: archive.sh builds a tiny checkpoint of every family as docs/model-families.json reports, or better.

    .venv/bin/python -m tests.nightly.test_families             writes all tables of the file, row by row
    .venv/bin/python -m tests.nightly.test_families --missing   continues with the rows that the file lacks
    .venv/bin/python -m tests.nightly.test_families bert gpt2   writes these rows

A further table is an entry of TABLES, and a further row one of tests.nightly.families.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_seq2seq
from tests.nightly import image_families
from tests.nightly.families import FAMILIES, save
from tests.nightly.sweep import MISSING, Build, Table, cell, is_worse
from tests.nightly.test_sentence_layouts import LAYOUTS, layout

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
        "sentence-transformers",
        {name: [Build("sentence_embedding", partial(layout, name=name))] for name in LAYOUTS},
    ),
    Table(
        "translation",
        {name: [Build("translation", make, settings)] for name, (make, settings) in TRANSLATORS.items()},
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
