"""The wheel in an empty environment outside the clone: a project in two commands, and the main job."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.sandbox import free_ports
from tests.waiting import until

UV = ROOT / ".uv" / "bin" / "uv"


class Installed:
    """The distribution in its own environment, run without this one's."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        (self.package,) = folder.glob("lib/python*/site-packages")
        dropped = ("PYTHON", "TORCHSERVE", "VIRTUAL")
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}

    def run(self, *words: str, cwd: Path) -> str:
        command = [str(self.bin / "torchserve-batching"), *words]
        done = subprocess.run(command, cwd=cwd, env=self.variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", ROOT], check=True)
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "environment"], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    python = folder / "environment" / "bin" / "python"
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, wheel], check=True)
    return Installed(folder / "environment")


@pytest.fixture
def nothing_written(installed: Installed) -> Iterator[None]:
    """The installed package has the same files after the test."""

    def listed() -> set[Path]:
        found = (installed.package / "torchserve_batching").rglob("*")
        return {path for path in found if path.suffix != ".pyc" and path.name != "__pycache__"}

    before = listed()
    yield
    assert listed() == before


@pytest.mark.usefixtures("nothing_written")
def test_two_commands_answer_a_request(installed: Installed, tmp_path: Path) -> None:
    installed.run("init", "demo", cwd=tmp_path)
    (port,) = free_ports(1)
    program = [str(installed.bin / "torchserve-batching"), "serve", "--port", str(port)]
    server = subprocess.Popen(program, cwd=tmp_path / "demo", env=installed.variables)
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/predictions/colours", b"#00007a", {"Content-Type": "text/plain"}
        )

        def is_answered() -> bool:
            try:
                with urllib.request.urlopen(request) as response:  # noqa: S310
                    return bool(json.loads(response.read()) == {"names": ["navy"]})
            except OSError:
                return False

        until(is_answered, 120)
    finally:
        server.terminate()
        server.wait()


@pytest.mark.usefixtures("nothing_written")
def test_bench_with_environments_of_a_clone_is_refused(installed: Installed, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"bench: .extras/int8 is built only in a clone: "):
        installed.run("bench", "int8", cwd=tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("nothing_written")
def test_main_job_runs_from_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    # Other ports, in the built-in configuration.
    config = installed.package / "torchserve_batching" / "config.properties"
    names = [f"{api}_address" for api in ("inference", "management", "metrics")]
    names += ["grpc_inference_port", "grpc_management_port"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    lines = [f"{name}={port if 'port' in name else f'http://127.0.0.1:{port}'}" for name, port in ports.items()]
    config.write_text("\n".join([config.read_text(), *lines, ""]))
    try:
        assert '"espresso": 0.' in installed.run("start", cwd=tmp_path)
        assert "READY" in installed.run("describe", cwd=tmp_path)
        assert "process" in installed.run("status", cwd=tmp_path)
    finally:
        installed.run("stop", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model_store", ".nodes"}
