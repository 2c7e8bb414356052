"""The client in an environment that has nothing else: it installs, it names itself, it predicts."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.models import ROOT
from tests.client.http_server import serving
from torchserve_client.version import VERSION

UV = ROOT / ".uv" / "bin" / "uv"


class Environment:
    """A virtual environment beside this one, run without anything of this one's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def install(self, project: Path) -> None:
        """Install a project folder with all that it declares, and nothing that it does not."""
        own = [str(UV), "pip", "install", "--quiet", "--python", str(self.python)]
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if UV.exists():
            self.run([sys.executable, "-m", "venv", "--without-pip", str(self.folder)])
        else:
            self.run([sys.executable, "-m", "venv", str(self.folder)])
        self.run([*(own if UV.exists() else pip), str(project)])

    def run(self, command: list[str]) -> str:
        """Run a program outside the repository; its output, and its complaints where it fails."""
        finished = subprocess.run(
            command, cwd=self.folder.parent, env=self.variables, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def evaluate(self, program: str) -> object:
        """Run a program and parse the JSON that it prints."""
        parsed: object = json.loads(self.run([str(self.python), "-c", program]))
        return parsed


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("package")
    # A build writes beside its sources: it is given a copy of them.
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    project = shutil.copytree(ROOT / "client", folder / "client", ignore=ignored)
    made = Environment(folder / "environment")
    made.install(project)
    shutil.rmtree(project)
    return made


def test_client_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = project["tool"]["hatch"]["version"]
    found = re.search(source["pattern"], (ROOT / source["path"]).read_text(encoding="utf-8"))
    assert found is not None and found["version"] == VERSION and "version" in project["project"]["dynamic"]


def test_installed_client_brings_what_it_declares_and_no_torch(environment: Environment) -> None:
    program = (
        "import importlib.metadata, json; "
        "print(json.dumps(sorted(each.name.lower() for each in importlib.metadata.distributions())))"
    )
    installed = environment.evaluate(program)
    assert isinstance(installed, list)
    assert {"torchserve-batching-client", "urllib3", "certifi", "numpy", "orjson", "pyyaml", "rich"} <= set(installed)
    assert not {"torch", "torchserve", "torchserve-batching", "transformers"} & set(installed)


def test_installed_client_predicts(environment: Environment) -> None:
    with serving(lambda path, _content_type, body: {"path": path, "text": body.decode()}) as url:
        program = (
            "import json; from torchserve_client import Client\n"
            f"with Client({url!r}, timeout_s=10) as client:\n"
            "    print(json.dumps(client.predict('m', 'a text', version='2.0')))"
        )
        assert environment.evaluate(program) == {"path": "/predictions/m/2.0", "text": "a text"}
