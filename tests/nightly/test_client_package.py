"""The client in an environment that has nothing else: it installs, it names itself, it predicts."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from deploy.models import ROOT
from tests.client.http_server import serving
from torchserve_client.version import VERSION

UV = ROOT / ".uv" / "bin" / "uv"


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Run a program where only the client is installed, and parse the JSON that it prints."""
    folder = tmp_path_factory.mktemp("package")
    # A build writes beside its sources, so it gets a copy of them.
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    project = shutil.copytree(ROOT / "client", folder / "client", ignore=ignored)
    python = folder / "environment" / "bin" / "python"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*words: object) -> str:
        done = subprocess.run(
            [*map(str, words)], cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "environment")
    run(UV, "pip", "install", "--quiet", "--python", python, project)
    shutil.rmtree(project)
    return lambda program: json.loads(run(python, "-c", program))


def test_client_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = project["tool"]["hatch"]["version"]
    found = re.search(source["pattern"], (ROOT / source["path"]).read_text(encoding="utf-8"))
    assert found is not None and found["version"] == VERSION and "version" in project["project"]["dynamic"]


def test_installed_client_brings_what_it_declares_and_no_torch(evaluate: Callable[[str], Any]) -> None:
    program = (
        "import importlib.metadata, json; "
        "print(json.dumps(sorted(each.name.lower() for each in importlib.metadata.distributions())))"
    )
    installed = {*evaluate(program)}
    assert {"torchserve-batching-client", "urllib3", "certifi", "numpy", "orjson", "pyyaml", "rich"} <= installed
    assert not {"torch", "torchserve", "torchserve-batching", "transformers"} & installed


def test_installed_client_predicts(evaluate: Callable[[str], Any]) -> None:
    with serving(lambda path, _content_type, body: {"path": path, "text": body.decode()}) as url:
        program = (
            "import json; from torchserve_client import Client\n"
            f"with Client({url!r}, timeout_s=10) as client:\n"
            "    print(json.dumps(client.predict('m', 'a text', version='2.0')))"
        )
        assert evaluate(program) == {"path": "/predictions/m/2.0", "text": "a text"}
