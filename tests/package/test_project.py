"""The project of `init`, built, tested and served from its own folder by the command, as the tutorial says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.sandbox import free_ports
from tests.pages import blocks
from torchserve_batching.init import PROJECT, main
from torchserve_batching.testing import run_task

pytestmark = pytest.mark.builds
PAGE = "docs/tutorials/own-project.md"


def test_tutorial_shows_files_of_the_project() -> None:
    files = {path.read_text(encoding="utf-8") for path in PROJECT.rglob("*") if path.suffix in (".py", ".yaml")}
    shown = {*blocks(PAGE, "python"), *blocks(PAGE, "yaml")}
    assert len(shown) == 3 and shown <= files


def test_tutorial_runs_as_written(tmp_path: Path) -> None:
    """Its blocks in one shell; the responses of JSON blocks are printed."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    (bin_folder / "torchserve-batching").write_text(
        f"{program}from torchserve_batching.__main__ import main\nsys.exit(main())\n"
    )
    (bin_folder / "torchserve-batching").chmod(0o755)
    (bin_folder / "python").symlink_to(sys.executable)
    (tmp_path / "work").mkdir()
    (port,) = free_ports(1)
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    script = "\n".join(blocks(PAGE, "sh")).replace("8080", str(port))
    script = script.replace("torchserve-batching serve", f"torchserve-batching serve --port {port}")
    shell = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(shell, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (line for block in blocks(PAGE, "json") for line in block.splitlines()):
        assert line in done.stdout, f"{line}\n{done.stdout}\n{done.stderr}"


def test_project_is_not_written_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.yaml").write_text("mine: 1\n")
    assert main([str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err == f"init: {tmp_path / 'models.yaml'} exists; nothing is written: name another folder\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["models.yaml"]


def test_task_runs_without_an_archive_or_a_server() -> None:
    task = PROJECT / "colour_task.py"
    single, raw, wrong, listed = run_task(
        task, [{"colour": "#00007a"}, b"#00007a", {"colour": 3}, {"instances": [{"colour": "#00007a"}], "top_k": 2}]
    )
    assert single == raw == {"names": ["navy"]}
    assert wrong["code"] == 400
    assert len(listed["predictions"][0]["names"]) == 2
    with pytest.raises(Exception, match="palete: unknown name"):
        run_task(task, [], settings={"palete": "a.csv"})


def test_workflow_pins_the_version(tmp_path: Path) -> None:
    assert main([str(tmp_path / "demo")]) == 0
    text = (tmp_path / "demo" / ".github" / "workflows" / "models.yml").read_text()
    assert re.search(r"torchserve-batching==\d+\.\d+\.\d+ pytest", text)
