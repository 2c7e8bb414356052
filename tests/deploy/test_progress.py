"""What commands show while they work: on a terminal, elsewhere, with and without colour."""

import os
import pty
import subprocess
import sys

import pytest

from deploy.models import ROOT

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
COLOUR = "\x1b[36m"


def printed(**environment: str) -> tuple[str, str]:
    """Run PROGRAM without a terminal; return its stdout and stderr."""
    variables = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=variables, capture_output=True, check=True)
    return done.stdout.decode(), done.stderr.decode()


def shown(**environment: str) -> str:
    """Run PROGRAM on a terminal; return what it writes."""
    controller, terminal = pty.openpty()
    variables = {
        **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        "TERM": "xterm",
        **environment,
    }
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, env=variables, stdout=terminal, stderr=terminal):
        os.close(terminal)
        text = b""
        try:
            while part := os.read(controller, 65536):
                text += part
        except OSError:
            # The program has ended.
            pass
    os.close(controller)
    return text.decode()


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}])
def test_elsewhere_a_step_of_two_seconds_is_one_line_and_nothing_is_coloured(environment: dict[str, str]) -> None:
    assert printed(**environment) == ("URL        http://x/\n", "slow (2 s)\nouter (2 s)\n")


def test_terminal_shows_what_runs_with_colour_unless_no_color_is_set() -> None:
    text = shown()
    # A live line is overwritten, and removed at the end.
    assert text.count("slow") > 2 and "slow (2 s)\r\n" in text and COLOUR in text
    assert "\x1b[3" not in (plain := shown(NO_COLOR="1")) and "slow (2 s)\r\n" in plain
