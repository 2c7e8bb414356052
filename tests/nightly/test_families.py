"""The sweep: what archive.sh makes of a tiny checkpoint of every family is what docs/models.md says, or better.

    .venv/bin/python -m tests.nightly.test_families     writes the page's table anew

A further column is an entry of TASKS, and a further row one of tests.nightly.families.
"""

import json
import tempfile
from pathlib import Path

import pytest

from deploy.build.exports import Exports
from deploy.build.precision import staging
from deploy.build.precision.request import PrecisionRequest
from deploy.build.sources import source
from deploy.models import ROOT, Model
from handlers.errors import InvalidConfig
from tests.nightly.families import FAMILIES, save

PAGE = ROOT / "docs" / "models.md"
HEAD = "| family | text classification | sentence embedding |\n|---|---|---|\n"
# A column's task, and the class of transformers that has its head.
TASKS = {"text_classification": "AutoModelForSequenceClassification", "sentence_embedding": "AutoModel"}
# What a cell begins with, the best first.
RESULTS = ("OpenVINO", "OpenVINO, exact", "torch", "torch, exact", "refused", "not swept")


def cell(family: str, task: str) -> str:
    """Build one; say which engine it has, whether padding is left out, and the largest error."""
    with tempfile.TemporaryDirectory() as work:
        weights, own, stage = (Path(work) / name for name in ("weights", "model", "stage"))
        own.mkdir()
        stage.mkdir()
        (own / "model-config.yaml").write_text("handler: {}\n")
        save(family, TASKS[task], weights)
        model = Model("tiny", task, "1", own)
        origin, exports = source(model, str(weights)), Exports(Path(work) / "exports")
        try:
            engine = staging.stage(model, origin, "auto", PrecisionRequest(), exports=exports, folder=stage)
        except InvalidConfig as error:
            assert "\n" not in str(error)
            return "refused"
        said = json.loads((stage / "fidelity.json").read_text())
    exact = ", exact" if said["settings"] else ""
    return f"{'torch' if engine == 'torch' else 'OpenVINO'}{exact}, {said['largest_error']:.0e}"


def table() -> dict[str, list[str]]:
    """Read the page's rows by family."""
    lines = PAGE.read_text(encoding="utf-8").partition(HEAD)[2].partition("\n\n")[0].splitlines()
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in lines]
    return {family: results for family, *results in cells}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_served_as_the_page_says_or_better(family: str, task: str) -> None:
    result, _, error = cell(family, task).rpartition(", ")
    said, _, least = table()[family][[*TASKS].index(task)].rpartition(", ")
    assert RESULTS.index(result or error) <= RESULTS.index(said or least)
    # An order of magnitude is no noise; the check itself allows a thousandth.
    assert not result or not said or float(error) <= max(1e-5, 10 * float(least))


def main() -> None:
    """Write the table."""
    rows = []
    for family in FAMILIES:
        rows.append(f"| {family} | {' | '.join(cell(family, task) for task in TASKS)} |")
        print(rows[-1], flush=True)
    before, _, after = PAGE.read_text(encoding="utf-8").partition(HEAD)
    rest = after.partition("\n\n")[2]
    PAGE.write_text(before + HEAD + "\n".join(rows) + "\n\n" + rest, encoding="utf-8")


if __name__ == "__main__":
    main()
