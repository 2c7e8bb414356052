"""The one command: its table, its help, and errors of one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchserve_batching.__main__ as command
from deploy.archives import __main__ as archives
from deploy.models import ROOT
from tests.tables import table
from torchserve_client.version import VERSION

# Each call of the program starts Python.
pytestmark = pytest.mark.builds


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    program = [sys.executable, "-m", "torchserve_batching", *words]
    return subprocess.run(program, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


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


def test_table_lists_every_command_once_without_missing_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(command.PLACE, str(ROOT))
    assert command.main(["--help"]) == 0
    whole = capsys.readouterr().out
    assert all(f"\n  {name} " in whole for name in command.find_commands())
    monkeypatch.setattr(command, "_exists", lambda module: module != "deploy.ray")
    assert command.main(["--help"]) == 0 and command.main(["ray"]) == 2
    printed = capsys.readouterr()
    assert "\n  ray " not in printed.out and printed.err.startswith("torchserve-batching: unknown command ray: ")


@table(
    (["--version"], 0, f"torchserve-batching {VERSION}\n"),
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


def test_variables_of_ray_are_lines_of_a_shell(tmp_path: Path) -> None:
    script = f'eval "$({sys.executable} -m torchserve_batching ray env)"; test -x $RAY_SERVE_HAPROXY_BINARY_PATH; env'
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-euc", script]
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    wanted = {f"PYTHONPATH={ROOT}:{ROOT}", "RAY_SERVE_HAPROXY_RETRY_ON=conn-failure empty-response"}
    assert wanted <= set(done.stdout.splitlines())
