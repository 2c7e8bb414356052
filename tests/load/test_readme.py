"""load/README.md: its library example runs, and its tables name what there is."""

import dataclasses
import re

from aiohttp import web

from deploy.models import ROOT
from load.bench.__main__ import BENCHMARKS
from load.runs.run_file import StepResult
from tests.load.fake_server import serving

README = (ROOT / "load" / "README.md").read_text(encoding="utf-8")


def test_readme_library_example_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    program = program.replace("Duration(20), warm_up_s=2", "Duration(0.2)").replace(
        "Grid(10, 200, 5)", "Grid(60, 60, 5)"
    )

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="{}")

    names = {"body": b"an image"}
    with serving(answer) as url:
        exec(program.replace("http://127.0.0.1:8080", url), names)  # noqa: S102 (the README's own words)
    assert names["summary"].statuses.keys() == {200}  # type: ignore[attr-defined]
    assert names["found"].measured.requests > 0  # type: ignore[attr-defined]


def test_readme_documents_every_field_of_a_step() -> None:
    fields = {field.name for field in dataclasses.fields(StepResult)}
    assert fields <= set(re.findall(r"`(\w+)`", README))


def test_readme_names_every_module_in_the_package_that_holds_it() -> None:
    rows = re.findall(r"^\| `(\w+)/` \| (.*) \|$", README, re.MULTILINE)
    assert [package for package, _ in rows] == [
        "measure",
        "generate",
        "runs",
        "autoscale",
        "report",
        "cli",
        "bench",
        "soak",
    ]
    for package, words in rows[:-2]:
        modules = {path.stem for path in (ROOT / "load" / package).glob("*.py")} - {"__init__"}
        assert set(re.findall(r"`(\w+)`", words)) == modules, package


def test_readme_names_every_part_of_the_benchmark() -> None:
    section = README.partition("## Benchmarks")[2].partition("## ")[0]
    assert set(BENCHMARKS) <= set(re.findall(r"`([\w-]+)`", section))
