"""The help of every command and the list of `make help`."""

import argparse
import re
import subprocess

import pytest

import load.arguments
from deploy.models import ROOT
from tests.tables import table
from torchserve_client import cli

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
