"""The progress of commands: on a terminal, elsewhere, with and without colour."""

import os
import pty
import subprocess
import sys

import pytest

from deploy.models import ROOT

pytestmark = pytest.mark.builds

PROGRAM = """
import time
from deploy.progress import show, step
with step("outer"):
    with step("quick"):
        time.sleep(0.1)
    with step("slow"):
        time.sleep(2.1)
show([("URL", "http://x/")])
"""
COMMAND = [sys.executable, "-c", PROGRAM]
COLOUR = "\x1b[3"


def test_elsewhere_a_step_of_two_seconds_is_one_line_and_nothing_is_coloured() -> None:
    variables = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run(COMMAND, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("URL        http://x/\n", "slow (2 s)\nouter (2 s)\n")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_terminal_shows_what_runs_with_colour_unless_no_color_is_set(no_color: str) -> None:
    controller, terminal = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "NO_COLOR": no_color}
    text = ""
    with subprocess.Popen(COMMAND, cwd=ROOT, env=variables, stdout=terminal, stderr=terminal):
        os.close(terminal)
        while "http" not in text:
            text += os.read(controller, 65536).decode()
    os.close(controller)
    # A live line is overwritten, and removed at the end.
    assert text.count("slow") > 2 and "slow (2 s)\r\n" in text
    assert (COLOUR in text) is not bool(no_color)
