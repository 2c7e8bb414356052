"""The progress of commands on a terminal and elsewhere, and the folders that killed ones leave."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.work_folders import MARK, make_work_folder, remove_in_use

pytestmark = pytest.mark.builds

PROGRAM = """
import time
from contextlib import suppress
from deploy.progress import show, step
with step("outer"), suppress(KeyError):
    with step("quick"):
        time.sleep(0.1)
    with step("slow"):
        time.sleep(2.1)
    with step("failed"):
        raise KeyError
show([("URL", "http://x/")])
"""
COMMAND = [sys.executable, "-c", PROGRAM]
VARIABLES = {**os.environ, "TERM": "xterm"}
COLOUR = "\x1b[3"
HOLDER = """
import sys
import threading
import time
from pathlib import Path
from deploy.work_folders import make_work_folder
with make_work_folder(".build-", Path(sys.argv[1])) as folder:
    (folder / "stage").mkdir()
    print(folder.parent.name, flush=True)
    sys.stdin.read()
"""


def test_step_of_two_seconds_is_a_line_and_a_terminal_shows_what_runs_with_colour_unless_no_color_is_set() -> None:
    terminals = [pty.openpty() for _ in range(2)]
    programs = [
        subprocess.Popen(COMMAND, cwd=ROOT, env={**VARIABLES, "NO_COLOR": no_color}, stdout=terminal, stderr=terminal)
        for (_, terminal), no_color in zip(terminals, ("", "1"), strict=True)
    ]
    variables = {**VARIABLES, "FORCE_COLOR": "1"}
    done = subprocess.run(COMMAND, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "URL        http://x/\n" and re.fullmatch(r"slow \(\d s\)\nouter \(\d s\)\n", done.stderr)
    for (controller, terminal), program, is_coloured in zip(terminals, programs, (True, False), strict=True):
        text = ""
        with program:
            os.close(terminal)
            while "http" not in text:
                text += os.read(controller, 65536).decode()
        os.close(controller)
        # A live line is overwritten, and removed at the end, which shows the cursor, also if a step failed.
        assert "\x1b[?25h" in text.partition("http")[0]
        assert text.count("slow") > 2 and re.search(r"slow \(\d s\)\r\n", text) and (COLOUR in text) is is_coloured


def test_folder_of_a_killed_process_is_removed_at_the_next_start_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    # A user's folders of such names stay, and one with another mark.
    theirs = [".build-mine", ".build-empty", ".build-other", ".build-link"]
    for name in theirs[:3]:
        (tmp_path / name).mkdir()
    (tmp_path / ".build-mine" / "thesis.txt").write_text("three years")
    (tmp_path / ".build-other" / MARK).write_text("mine")
    (tmp_path / ".build-link").symlink_to(tmp_path / ".build-mine")
    command, pipe = [sys.executable, "-c", HOLDER, str(tmp_path)], subprocess.PIPE
    killed, living = (subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) for _ in range(2))
    with killed, living:
        names = [(each.stdout or sys.stdin).readline().strip() for each in (killed, living)]
        killed.kill()
        killed.wait()
        with make_work_folder(".build-", tmp_path) as own:
            assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[1], own.parent.name, *theirs])
        living.communicate("")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(theirs)
    assert (tmp_path / ".build-mine" / "thesis.txt").read_text() == "three years"


def test_folder_of_this_process_is_removed_although_another_thread_unpacks_files_there(tmp_path: Path) -> None:
    def unpack() -> None:
        for number in range(300):
            with contextlib.suppress(OSError):  # it was removed meanwhile
                (folder := tmp_path / "serve-1" / "work" / f"{number}").mkdir(parents=True, exist_ok=True)
                (folder / "infer.py").write_text("")
            written.set()
            time.sleep(0.001)

    written = threading.Event()
    thread = threading.Thread(target=unpack)
    thread.start()
    written.wait()
    remove_in_use(tmp_path / "serve-1")
    thread.join()
    assert not [*tmp_path.iterdir()]
