"""The pages' claims: links have targets, tests run the commands, examples are complete; and the help of commands."""

import argparse
import json
import re
import subprocess
import sys
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import load.arguments
from deploy.archives.tasks import task_of
from deploy.models import ROOT, models
from docs import generate as documented
from docs.generate import find_parser, list_parsers
from tests.client.conftest import serving
from tests.e2e.checkout import PRINTED
from tests.pages import PAGES, RUN_PAGES, anchors, blocks, prose, read
from tests.tables import table
from torchserve_client import cli

# A file of this repository that a text names.
FILE = re.compile(
    r"(?<![\w./~-])(?:deploy|docs|tests|load|handlers|client|examples)/[\w./-]*\w"
    r"\.(?:py|md|sh|ya?ml|json|toml|lock|lua|properties|png|svg|js)\b"
)
# Names that stand for others, and files that a reader or a test makes.
OTHERS = {
    "deploy/extras/NAME.lock",
    "deploy/prometheus/local.yml",
    "docs/reference/client-commands.md",
    "docs/reference/task-api.md",
    "docs/reference/commands.md",
    "handlers/h.py",
}
LINK = re.compile(r"\[[^]]+\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files_and_headings(page: str) -> None:
    wrong = []
    for link in LINK.findall(prose(page)):
        # GitHub's own pages of the repository begin with two steps up: the badge of CI.
        if link.startswith(("http://", "https://", "mailto:", "../../actions/")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.resolve().relative_to(ROOT.resolve()).as_posix()):
            wrong.append(f"{link}: no such heading")
    assert not wrong


def test_files_that_comments_and_pages_name_exist() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [ROOT / name for name in listed if not name.endswith((".png", ".jpg", ".lock")) and name != "CHANGELOG.md"]
    named = {found for path in texts if path.is_file() for found in FILE.findall(path.read_text(errors="replace"))}
    assert {found for found in named - OTHERS if not (ROOT / found).exists()} == set()


def test_guarantees_have_the_tests_that_their_table_names() -> None:
    missing = []
    for row in re.findall(r"^\|[^|]+\|([^|]+)\|$", read("tests/README.md"), re.MULTILINE):
        for name, test in re.findall(r"`([\w/]+)(?:::(\w+))?`", row):
            path = ROOT / "tests" / re.sub("^envoy/", "deploy/gateway/envoy/", name)
            file = path.with_name(f"test_{path.name}.py")
            if not (path.is_dir() or (file.is_file() and f"def test_{test}" in file.read_text(encoding="utf-8"))):
                missing.append((name, test))
    assert missing == []


def test_shell_blocks_stand_on_pages_that_are_run() -> None:
    assert {page for page in PAGES if blocks(page)} == {*RUN_PAGES}


def test_entries_of_readmes_model_list_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("".join(blocks("README.md", "yaml")), encoding="utf-8")
    assert {name: (task_of(each).path.stem, bool(each.weights)) for name, each in models(path).items()} == {
        "mnist": ("tensors", True),
        "reviews": ("text_classification", True),
    }


@pytest.mark.parametrize("module", ["docs.generate", "docs.diagrams"])
def test_generated_pages_and_diagrams_are_those_of_the_code(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--check"])
    assert import_module(module).main() == 0, capsys.readouterr().err


def test_docs_have_at_most_26500_words_no_page_has_2500_and_readme_170_lines() -> None:
    # Marks of tables and of generated blocks are not words.
    texts = (re.sub(r"<!--.*?-->", "", read(page)) for page in PAGES if page.startswith("docs/"))
    words = [len(re.findall(r"\S*\w\S*", text)) for text in texts]
    assert (sum(words) <= 26_500, max(words) <= 2500) == (True, True)
    assert len(read("README.md").splitlines()) <= 170


def test_each_block_that_runs_has_one_expected_output() -> None:
    found = {block: [each for each in PRINTED if each in block] for page in RUN_PAGES for block in blocks(page)}
    assert [(block, known) for block, known in found.items() if len(known) != 1] == []
    assert {*chain.from_iterable(found.values())} == PRINTED.keys()


@pytest.mark.parametrize("module", [module for _, modules in documented.COMMANDS.values() for module in modules])
def test_each_option_has_help(module: str) -> None:
    found = [each for parser in list_parsers(find_parser(module)) for each in parser._actions]
    is_fine = [each.metavar if isinstance(each, argparse._SubParsersAction) else each.help for each in found]
    assert len(found) > 3 and [each.dest for each, fine in zip(found, is_fine, strict=True) if not fine] == []


VERBS = {"build", "check", "compare", "install", "list", "resolve", "run", "send", "start", "stop", "write"}
VERBS |= {"took"}  # a tier of tests, in its last run


def test_make_help_fits_on_one_screen_and_every_line_says_what_a_target_does() -> None:
    command = ["make", "-s", "--no-print-directory", "help"]  # a make above it may print folders
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"serve", "test", "stop", "help"} <= {line.split()[0] for line in lines} and len(lines) <= 24
    assert [line for line in lines if len(line) > 80 or line.split()[1] not in VERBS] == []


COMMANDS = ("register", "scale", "describe", "wait-ready", "unregister", "rollout", "predict", "embed", "rerank")


@table(
    *((cli.parser(), "torchserve-client", command) for command in ("", *COMMANDS)),
    *((load.arguments.parser(), " load", command) for command in ("", "run", "search", "report")),
)
def test_help_begins_with_a_sentence_and_ends_with_two_examples_that_parse(
    parser: argparse.ArgumentParser, program: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args([command, "--help"] if command else ["--help"])
    _, sentence, *_, last = re.split(r"\n\n", capsys.readouterr().out.strip())
    assert re.fullmatch(r"[A-Z][^.]+\.", sentence)
    title, *examples = last.splitlines()
    assert (title, len(examples)) == ("examples:", 2)
    for example in examples:
        _, words = example.split(f"{program} ", maxsplit=1)
        parser.parse_args([each.strip('"') for each in re.findall(r'"[^"]*"|\S+', words.partition(" <")[0])])


@table(*zip(blocks("client/README.md", "python"), ("{0}\n", "{0}\n1000\n8\n", "[8]\n"), strict=True))
def test_program_of_the_clients_readme_runs(program: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    vector = [0.25, -0.5]

    def answer(_: str, content_type: str, body: bytes) -> Any:
        """Respond for both APIs of a server with sentence-embedding, batch_size 8: a vector for each text."""
        if not body:
            return [{"modelName": "sentence-embedding", "batchSize": 8}]
        is_list = content_type == "application/json"
        return {"predictions": [vector] * len(json.loads(body)["instances"])} if is_list else vector

    with serving(answer) as url:
        exec(re.sub(r"http://127\.0\.0\.1:808[01]", url, program), {})  # noqa: S102 (the README's own words)
    assert capsys.readouterr().out == printed.format(vector)
