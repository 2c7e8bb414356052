"""What the pages say of the repository is so: links, paths, settings, metrics, errors, targets, versions."""

import dataclasses
import hashlib
import inspect
import re
import tomllib
from typing import Any

import pytest
import yaml

from deploy.models import ROOT
from handlers import errors, metrics
from handlers.config import HandlerConfig, SchedulingConfig, TensorNames
from handlers.tensor_models.config import TensorsConfig
from handlers.text.config import (
    LanguageIdConfig,
    QuestionAnsweringConfig,
    TextClassificationConfig,
    TextConfig,
    TokenClassificationConfig,
    TokenizationConfig,
)
from handlers.text.translation_config import TranslationConfig
from handlers.vision.config import ImageClassificationConfig
from tests.pages import PAGES, RUN_PAGES, anchors, blocks, codes, prose, read, section, table
from torchserve_client.version import VERSION

LINK = re.compile(r"\[[^]]+\]\(([^)\s]+)\)")
# Of https://www.apache.org/licenses/LICENSE-2.0.txt.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
# Where a path in backticks is one of the repository; elsewhere it is an example, a URL or built.
FOLDERS = ("handlers", "load", "client", "deploy", "tests", "examples", "docs", ".github")
MODULE = re.compile(r"(?:handlers|load|deploy|torchserve_client)(?:\.\w+)+")

# Heading of docs/settings.md -> the settings under it that are not its parent's.
SETTINGS: dict[str, type[Any]] = {
    "## Every task": HandlerConfig,
    "## Scheduling": SchedulingConfig,
    "## Image classification": ImageClassificationConfig,
    "## Every task on a transformer": TextConfig,
    "## Text classification": TextClassificationConfig,
    "## Token classification": TokenClassificationConfig,
    "## Question answering": QuestionAnsweringConfig,
    "## Translation": TranslationConfig,
    "## Tokenization": TokenizationConfig,
    "## Tensors": TensorsConfig,
    "## Language identification": LanguageIdConfig,
}


# -- links and paths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files_and_headings(page: str) -> None:
    wrong = []
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.resolve().relative_to(ROOT.resolve()).as_posix()):
            wrong.append(f"{link}: no such heading")
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_backticks_exist(page: str) -> None:
    paths = [code for code in codes(page) if re.fullmatch(r"[\w.*/-]+", code) and code.partition("/")[0] in FOLDERS]
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_modules_in_backticks_exist(page: str) -> None:
    """`package.module`, or `package.module.name` where the module has the name; the changelog names former ones."""
    assert [code for code in codes(page) if MODULE.fullmatch(code) and not _is_there(code)] == []


def _is_there(name: str) -> bool:
    parts = name.replace("torchserve_client", "client/torchserve_client").split(".")
    for size in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:size])
        source = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if source.is_file():
            return all(re.search(rf"\b{part}\b", source.read_text(encoding="utf-8")) for part in parts[size:])
    return False


def test_shell_blocks_stand_on_pages_that_are_run() -> None:
    assert [page for page in PAGES if blocks(page)] == list(RUN_PAGES)


def test_every_page_of_docs_is_reached_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(prose("README.md"))}
    assert {page for page in PAGES if page != "README.md"} <= linked


# -- settings, metrics, errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("heading", "cls"), SETTINGS.items())
def test_settings_are_those_of_the_configuration(heading: str, cls: type[Any]) -> None:
    """Each with its default; a class's own, since its parent has a table of its own."""
    defaults = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(cls)
    }
    own = {name: _written(defaults[name]) for name in inspect.get_annotations(cls)}
    documented = {row[0].strip("`"): row[1].strip("`") for row in table(section("docs/settings.md", heading))}
    assert documented == own


def _written(default: Any) -> str:
    """A default as YAML has it."""
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, SchedulingConfig):
        return f"mode: {default.mode}"
    if default == {} or isinstance(default, TensorNames):
        return "{}"
    if isinstance(default, bool | type(None)):
        return "null" if default is None else str(default).lower()
    if isinstance(default, tuple):
        return f"[{', '.join(map(str, default))}]"
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_metrics_are_those_of_the_handlers() -> None:
    declared = {*(counter.name for counter in metrics.COUNTERS), *(each.name for each in metrics.HISTOGRAMS)}
    named = {name for page in PAGES for name in re.findall(r"\bhandler_[a-z_]*[a-z]\b", read(page))}
    assert named <= declared
    parts = {part.name for each in metrics.HISTOGRAMS for part in (each.bucket, each.sum, each.count)}
    listed = {name for row in table(section("docs/operations.md", "## Metrics")) for name in re.findall(r"\w+", row[0])}
    assert declared - parts <= listed


def test_metrics_of_torchserve_are_declared_to_it() -> None:
    declared = yaml.safe_load((ROOT / "deploy" / "metrics.yaml").read_text(encoding="utf-8"))["ts_metrics"]
    names = {metric["name"] for metrics_of_kind in declared.values() for metric in metrics_of_kind}
    named = {n for page in PAGES for n in re.findall(r"\bts_\w+_(?:total|microseconds)\b", read(page))}
    assert named <= names


def test_errors_are_those_of_the_handlers() -> None:
    """Every type that a client can meet stands in the table, with its status."""
    documented = {
        (int(status), kind)
        for row in table(section("docs/requests.md", "## Errors"))
        for status in re.findall(r"\d+", row[0])
        for kind in re.findall(r"`(\w+)`", row[1])
    }
    values = (errors.INTERNAL_ERROR, errors.OUT_OF_MEMORY, errors.OUT_OF_TIME, errors.EXPIRED)
    refused = {(status, kind) for status in (429, 503) for kind in ("Overloaded", "QueueFull")}
    raised = {(cls.code, cls.__name__) for cls in _descendants(errors.InvalidInput)} - {(413, "TooLarge")}
    raised.add((errors.WrongOutput.code, errors.WrongOutput.__name__))
    assert documented == raised | {(value.code, value.type) for value in values} | refused


def _descendants(cls: type[errors.InvalidInput]) -> set[type[errors.InvalidInput]]:
    """Those of the module itself: tests have some of their own."""
    children = {child for child in cls.__subclasses__() if child.__module__ == errors.__name__}
    return children.union(*(_descendants(child) for child in children))


# -- commands, versions, licence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shell = [line for language in ("bash", "text") for block in blocks(page, language) for line in block.splitlines()]
    named = {name for code in [*codes(page), *shell] for name in re.findall(r"^(?:\w+=\S+ )*make ([a-z-]+)", code)}
    assert named <= targets


def test_changelog_begins_with_the_version_of_the_project() -> None:
    newest, *_ = re.findall(r"^## \[?(\d+\.\d+\.\d+)\]?", read("CHANGELOG.md"), re.MULTILINE)
    assert newest == _project("pyproject.toml")["version"] == VERSION


def test_license_is_the_one_that_the_packages_name() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0
    assert {_project(path)["license"] for path in ("pyproject.toml", "client/pyproject.toml")} == {"Apache-2.0"}


def test_continuous_integration_runs_what_decides() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["test"]["steps"]
    assert "make test" in [step.get("run") for step in steps]
    assert workflow["permissions"] == {"contents": "read"}


def _project(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / path).read_text(encoding="utf-8"))["project"]
    return loaded


def test_readme_shows_the_custom_task_whole() -> None:
    assert (ROOT / "examples" / "custom-task" / "colour_names.py").read_text(encoding="utf-8") in blocks(
        "README.md", "python"
    )
