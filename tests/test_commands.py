"""What every command prints when asked for help, and what `make help` lists."""

import subprocess
import sys

import pytest

from deploy.models import ROOT

VERBS = {"build", "check", "compare", "install", "list", "resolve", "run", "send", "start", "stop"}
FORMER_NAMES = {"deploy.nodes"}
MODULES = [
    ".".join(path.parent.relative_to(top).parts)
    for top, package in ((ROOT, "deploy"), (ROOT, "load"), (ROOT / "client", "torchserve_client"))
    for path in sorted((top / package).rglob("__main__.py"))
]


def test_make_help_fits_on_one_screen_and_every_line_says_what_a_target_does() -> None:
    printed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = printed.splitlines()
    targets = [line.split()[0] for line in lines]
    assert {"serve", "test", "stop", "help"} <= {*targets} and len(lines) <= 24
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if line.split()[1] not in VERBS] == []


@pytest.mark.parametrize("module", [*(each for each in MODULES if each not in FORMER_NAMES), "deploy.lock"])
def test_help_of_a_command_is_printed_and_no_error(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.startswith("usage: "), done.stderr) == (0, True, "")
