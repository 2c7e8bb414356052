"""The one command, and the project of its `init`, built, tested and served from its own folder as the tutorial says."""

import getpass
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchserve_batching.__main__ as command
from deploy.archives import __main__ as archives
from deploy.models import ROOT
from load.sandbox import free_ports
from tests.package.conftest import run
from tests.pages import blocks
from tests.tables import table
from torchserve_batching.init import PARTS, PROJECT, main
from torchserve_batching.testing import run_task
from torchserve_client.version import VERSION

pytestmark = pytest.mark.builds
PAGE = "docs/tutorials/own-project.md"


def test_tutorial_shows_files_of_the_project() -> None:
    files = {path.read_text(encoding="utf-8") for path in PROJECT.rglob("*") if path.suffix in (".py", ".yaml")}
    shown = {*blocks(PAGE, "python"), *blocks(PAGE, "yaml")}
    assert len(shown) == 2 and shown <= files


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


# Ends `init` at a line of its modules, or prints their number.
ENDING = """
import sys
import torchserve_batching.init as init
from tests.killing import count_lines

names = ("init.py", "work_folders.py", "shutil.py")
end = count_lines(lambda code: code.co_filename.endswith(names), int(sys.argv[1]))
assert init.main([sys.argv[2]]) == 0
print(end())
"""


@pytest.mark.parametrize("is_there", [False, True])
def test_init_that_is_killed_is_repeated_and_leaves_nothing_else(is_there: bool, tmp_path: Path) -> None:
    def call(folder: Path, last: int) -> int:
        (folder if is_there else folder.parent).mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-c", ENDING, str(last), str(folder)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return 0 if done.returncode else int(done.stdout.split()[-1])

    def files(folder: Path) -> dict[str, bytes]:
        return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}

    lines = call(tmp_path / "whole" / "own", 10**9)
    wanted = files(tmp_path / "whole")
    # At the end the folder has its name, and the work beside it is being removed.
    for last in (*(lines * number // 6 for number in range(6)), lines - 20):
        folder = tmp_path / str(last) / "own"
        assert call(folder, last) == 0 and call(folder, 10**9)
        assert files(folder.parent) == wanted


def test_project_is_written_whole_or_not_at_all_and_through_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"

    def link(folder: Path, name: str, target: Path) -> None:
        (folder / name).symlink_to(target)

    cases: dict[str, Callable[[Path], object]] = {
        "models.yaml": lambda folder: link(folder, "models.yaml", outside / "new.yaml"),
        "tests": lambda folder: link(folder, "tests", outside),
        "a folder": lambda folder: (folder / "tests" / "test_colours.py").mkdir(parents=True),
        "colours": lambda folder: (folder / "colours").write_text("a file"),
        ".github": lambda folder: link(folder, ".github", outside),
    }
    outside.mkdir()
    for number, (taken, make) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder)
        before = sorted(folder.rglob("*"))
        assert main([str(folder)]) == 1, taken
        assert (sorted(folder.rglob("*")), [*outside.iterdir()]) == (before, []), taken
    # An interrupted call is repeated; the parents of a folder that cannot be written are not left.
    half, whole = tmp_path / "half", tmp_path / "new" / "project"
    assert [main([str(half)]), main([str(whole)])] == [0, 0]
    (half / "colour_task.py").unlink()
    assert main([str(half)]) == 0
    names = [sorted(path.relative_to(folder) for path in folder.rglob("*")) for folder in (half, whole)]
    assert names[0] == names[1] and len(names[0]) > 9
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file" / "deep" / "project")]) == 1


def test_parts_for_production_have_the_folder_and_command_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.yaml").write_text("mine: 1\n")
    parts = ["systemd", "container", "monitoring", "gateway", "production"]
    assert main([str(tmp_path), "--with", ",".join(parts)]) == 0
    assert not (tmp_path / "colour_task.py").exists() and sorted(PARTS) == sorted(parts)
    texts = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert not [name for name, text in texts.items() if "/srv/torchserve" in text or "==VERSION" in text]
    units = {name: text for name, text in texts.items() if name.endswith(".service")}
    assert len(units) == 3
    for name, unit in units.items():
        assert f"WorkingDirectory={tmp_path}\n" in unit and f"User={getpass.getuser()}\n" in unit, name
        (command_line,) = re.findall(r"^ExecStart=(.+)", unit, re.MULTILINE)
        # The program exists, and knows the command.
        words = [*shlex.split(re.sub(r"\$\{\w+\}", "1", command_line)), "--help"]
        assert subprocess.run(words, cwd=ROOT, capture_output=True, check=False, timeout=60).returncode == 0, words
    assert "localhost:8002" in texts["monitoring/prometheus.yml"]
    assert str(tmp_path) in texts["monitoring/grafana/provisioning/dashboards/torchserve.yml"]
    assert texts["gateway.yaml"] == (ROOT / "deploy" / "gateway.yaml").read_text()
    # A changed file stays; a part of another name is an error of one line.
    (tmp_path / "gateway.yaml").write_text("mine: 1\n")
    assert main([str(tmp_path), "--with", "gateway"]) == 1 and "gateway.yaml exists" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--with", "systemd,other"])
    assert "'other' is not one of container, gateway, monitoring, production, systemd" in capsys.readouterr().err


def test_task_runs_without_an_archive_or_a_server(caplog: pytest.LogCaptureFixture) -> None:
    task = PROJECT / "colour_task.py"
    single, raw, wrong, listed = run_task(
        task, [{"colour": "#00007a"}, b"#00007a", {"colour": 3}, {"instances": [{"colour": "#00007a"}], "top_k": 2}]
    )
    assert single == raw == {"names": ["navy"]}
    assert wrong["code"] == 400
    assert len(listed["predictions"][0]["names"]) == 2
    # A handler sets both for its worker's life, which a test's is not.
    with caplog.at_level(logging.INFO):
        with pytest.raises(Exception, match="palete: unknown name"):
            run_task(task, [], settings={"palete": "a.csv"})
        assert (logging.getLogger().level, sys.tracebacklimit) == (logging.INFO, None)


def test_workflow_pins_the_version(tmp_path: Path) -> None:
    assert main([str(tmp_path / "demo")]) == 0
    text = (tmp_path / "demo" / ".github" / "workflows" / "models.yml").read_text()
    assert re.search(r"\"torchserve-batching\[all\]==\d+\.\d+\.\d+\" pytest", text)


@pytest.mark.parametrize("name", ["init", "archive", "serve", "start", "status", "gateway", "ray", "describe", "load"])
def test_help_of_a_command_names_it_and_ends_with_two_examples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(command.PLACE, str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    # It would fork the process of the tests.
    monkeypatch.setattr(archives, "run_in_child", archives.main)
    with pytest.raises(SystemExit, match="0"):
        raise SystemExit(command.main([name, "--help"]))
    out, err = capfd.readouterr()
    assert (out.startswith(f"usage: torchserve-batching {name}"), err) == (True, "")
    examples = out.rpartition("examples:\n")[2].strip().splitlines()
    assert len(examples) == 2 and f"torchserve-batching {name}" in examples[0]


def test_table_lists_what_exists_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(command.PLACE, str(ROOT))
    assert command.main(["--help"]) == 0
    whole = capsys.readouterr().out
    assert all(f"\n  {name} " in whole for name in command.find_commands())
    monkeypatch.setattr(command, "_exists", lambda module: module != "deploy.hosts.ray")
    assert command.main(["--help"]) == 0 and command.main(["ray"]) == 2
    printed = capsys.readouterr()
    assert "\n  ray " not in printed.out and printed.err.startswith("torchserve-batching: unknown command ray: ")


@table(
    (["--version"], 0, f"torchserve-batching {VERSION}\n"),
    (["--files"], 0, f"{ROOT}\n"),
    (["descrbe"], 2, "torchserve-batching: unknown command descrbe: did you mean describe? "),
    (["--dir", "nowhere", "status"], 1, "torchserve-batching: --dir nowhere: no such folder; make it first"),
    (["archive", "--all"], 1, "torchserve-batching archive: models.yaml: no model list "),
    (["init", "/proc/x"], 1, "init: /proc/x: No such file or directory"),
    (["serve"], 1, "serve: no models.yaml in "),
    (["serve", "m.mar", "--port", "99999"], 2, "'99999' is not a whole number of 0 or more and at most 65535; "),
    (["serve", "nothing.mar"], 1, "serve: no archive nothing.mar; torchserve-batching archive builds archives"),
    (["rollout", "m", "--to", "../1"], 2, "argument --to: '../1' is not a valid name: use 1 to 128 letters"),
    (["--management-url", "http://127.0.0.1:9", "describe"], 2, "torchserve-batching: "),
)
def test_command_line_that_is_wrong_is_one_line(words: list[str], code: int, line: str, tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    printed = (done.stdout + done.stderr).splitlines()
    assert (done.returncode, line.rstrip() in printed[-1], len(printed)) == (code, True, 1), printed
    assert not list(tmp_path.iterdir())


@table(["--dir={}", "--version"], ["--dir", "{}", "--version"], ["--version", "--dir={}"])
def test_folder_of_the_state_is_taken_out_of_any_place(words: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    for name in (command.PLACE, "TORCHSERVE_NODES", "TORCHSERVE_MANAGEMENT_URL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / ".nodes").mkdir()
    (tmp_path / ".nodes" / "nodes.json").touch()
    assert command.main([word.format(tmp_path) for word in words]) == 0
    assert (os.environ[command.PLACE], os.environ["TORCHSERVE_NODES"]) == (
        str(tmp_path), str(tmp_path / ".nodes" / "nodes.json"),
    )  # fmt: skip


def test_variables_of_ray_are_lines_of_a_shell(tmp_path: Path) -> None:
    script = f'eval "$({sys.executable} -m torchserve_batching ray env)"; test -x $RAY_SERVE_HAPROXY_BINARY_PATH; env'
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-euc", script]
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    wanted = {f"PYTHONPATH={ROOT}:{ROOT}", "RAY_SERVE_HAPROXY_RETRY_ON=conn-failure empty-response"}
    assert wanted <= set(done.stdout.splitlines())
