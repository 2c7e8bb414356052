"""Folders of killed processes are removed at the next start, and those of living ones stay."""

import subprocess
import sys
from pathlib import Path

from deploy.work_folders import make_work_folder

PROGRAM = """
import sys
from pathlib import Path
from deploy.work_folders import make_work_folder
with make_work_folder(".build-", Path(sys.argv[1])) as folder:
    (folder / "stage").mkdir()
    print(folder.name, flush=True)
    sys.stdin.read()
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_folder_of_a_killed_process_is_removed_at_the_next_start_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    killed, living = (start(tmp_path) for _ in range(2))
    with killed, living:
        names = [(each.stdout or sys.stdin).readline().strip() for each in (killed, living)]
        killed.kill()
        killed.wait()
        with make_work_folder(".build-", tmp_path) as own:
            assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[1], own.name])
        living.communicate("")
    assert not list(tmp_path.iterdir())
